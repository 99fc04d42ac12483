use super::*;

const FILE: &str = "\
; Head comment.
;! print
graph @a {
  %x =  input f32[2]   ; loosely written
  return %x
}
;> graph @a {
;>   %x = input f32[2]
;>   return %x
;> }

; Second case.
;! verify
graph @b {
  %x = input f32[2]
  %y = relu %x : f32[3] ;~ error: layer `y` is written as f32[3] but its operator gives f32[2]
  return %y
}
;! pass negate
;! equal
graph @c {
  %x = input f32[2]
  return %x
}
;> graph @c {
;>   %x = input f32[2]
;>   %y = neg %x : f32[2]
;>   return %x
;> }
";

const PASSES: &[(&str, PassFn)] =
    &[("negate", |text| Ok(text.trim().replace("  return", "  %y = neg %x : f32[2]\n  return")))];

fn failures(file: &str) -> Vec<(usize, CaseFailure)> {
    case::split(file)
        .iter_mut()
        .flat_map(|case| case.run(PASSES, Reader::by_keyword(&case.text), false))
        .collect()
}

#[test]
fn cases_that_hold_pass() {
    assert_eq!(failures(FILE), []);
    assert_eq!(case::split(FILE).len(), 3);
}

#[test]
fn a_changed_text_fails_and_is_blessed() {
    let stale = FILE.replace(";>   %x = input f32[2]\n", ";>   %x = input f32[9]\n").replace(";> }\n", "");
    let lines: Vec<_> = failures(&stale).iter().map(|(line, _)| *line).collect();
    assert_eq!(lines, [2, 18, 19]);
    let mut cases = case::split(&stale);
    cases.iter_mut().for_each(|case| drop(case.run(PASSES, Reader::by_keyword(&case.text), true)));
    assert_eq!(case::join(&stale, &cases), FILE);
}

#[test]
fn errors_are_compared_by_line() {
    let moved = FILE.replace("%y = relu %x : f32[3] ;~", "%y = relu %x : f32[3]\n ;~");
    let [(17, CaseFailure::MissingError(missing)), (16, CaseFailure::UnexpectedError(found))] =
        &failures(&moved)[..]
    else {
        panic!("{:?}", failures(&moved));
    };
    assert_eq!(missing, found);
}

#[test]
fn mistakes_in_commands_are_named() {
    let unknown = FILE.replace(";! print", ";! prnt").replace("pass negate", "pass none");
    let expected = [(2, CaseFailure::Command("prnt".into())), (19, CaseFailure::UnknownPass("none".into()))];
    assert_eq!(failures(&unknown), expected);
}

#[test]
fn unequal_models_are_told_apart() {
    let wrong = FILE.replace(";>   return %x\n;> }\n", ";>   return %y\n;> }\n");
    assert!(failures(&wrong).contains(&(20, CaseFailure::Unequal(0))), "{:?}", failures(&wrong));
}

#[test]
fn a_folder_without_cases_fails() {
    let missing = Path::new("no such folder");
    let failures = run(missing, &[]).expect_err("there is no such folder");
    assert!(matches!(failures[0].failure, CaseFailure::File(_)));
}
