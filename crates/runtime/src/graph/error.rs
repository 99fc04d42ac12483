//! Why a graph cannot be made, or not be launched.

/// Why a flow cannot be bound.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the fields are named by the messages")]
pub enum GraphError {
    /// Too few processors were given.
    #[error("flow {flow} is for {needed} processors and was given {given}; give one for each")]
    Processors { flow: String, needed: u32, given: usize },
    /// A processor was given that the runtime does not have.
    #[error("flow {flow} was given processor {processor} of a runtime with {processors}; use 0 to {}", processors - 1)]
    NoSuchProcessor { flow: String, processor: u32, processors: usize },
    /// An operation leaves work on a device where there is none.
    #[error(
        "{operation} of flow {flow} leaves work on the device of processor {processor}, which has none; attach one"
    )]
    NoDevice { flow: String, operation: String, processor: u32 },
    /// An operation's function is not in the table.
    #[error(
        "{operation} of flow {flow} calls function {function}, but the table has {given}; add it to the table"
    )]
    Function { flow: String, operation: String, function: u32, given: usize },
}

/// Why a graph cannot be launched.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the fields are named by the messages")]
pub enum LaunchError {
    /// The graph has been destroyed.
    #[error("graph {0} has been destroyed; make it again")]
    Destroyed(String),
    /// A one-shot graph has been launched before.
    #[error("graph {0} is one-shot and has been launched before; declare another mode")]
    Again(String),
    /// The arguments do not have the size the flow declares.
    #[error("graph {graph} takes {need} bytes of arguments, not {given}")]
    Args { graph: String, need: u32, given: usize },
    /// More events than the flow has inputs.
    #[error("graph {graph} has {need} inputs, not {given}")]
    Inputs { graph: String, need: u32, given: usize },
    /// A task that promised not to.
    #[error("graph {0} is launched by a task that promised not to launch; declare it blocking")]
    BrokenPromise(String),
}
