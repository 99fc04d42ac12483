//! A conversation as one text that a model continues.

/// The side that says something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speaker {
    /// The person.
    User,
    /// The model.
    Assistant,
}

/// What one side says in a turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChatTurn {
    /// The side.
    pub speaker: Speaker,
    /// Its words.
    pub text: String,
}

/// Where the model goes on with the other side's turn: its own is over.
pub const TURN_END: &str = "\nUser:";

/// The text whose continuation is the assistant's next turn.
pub fn conversation(turns: &[ChatTurn]) -> String {
    let line = |turn: &ChatTurn| {
        let speaker = match turn.speaker {
            Speaker::User => "User",
            Speaker::Assistant => "Assistant",
        };
        format!("{speaker}: {}\n", turn.text)
    };
    turns.iter().map(line).collect::<String>() + "Assistant:"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_conversation_ends_where_the_assistant_begins() {
        let say = |speaker, text: &str| ChatTurn { speaker, text: text.into() };
        let turns =
            [say(Speaker::User, "Hi."), say(Speaker::Assistant, "Hello."), say(Speaker::User, "Why?")];
        let text = conversation(&turns);
        assert_eq!(text, "User: Hi.\nAssistant: Hello.\nUser: Why?\nAssistant:");
        assert!(text.contains(TURN_END), "a turn ends as the next one begins");
    }
}
