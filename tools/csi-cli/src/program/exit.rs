//! The exit statuses.

use tonic::Code;

pub(crate) const DONE: u8 = 0;
/// A step of the life failed, something is unhealthy, or the output could not be written.
pub(crate) const FAILED: u8 = 1;
/// The command line, a file or a variable is wrong. Nothing was sent.
pub(crate) const USAGE: u8 = 2;
/// Nothing answers on the socket.
pub(crate) const UNREACHABLE: u8 = 3;
/// The plugin refused; its status code is added.
const REFUSED: u8 = 64;

pub(crate) const HELP: &str = "\
Exit status:
    0  success
    1  a step of `lifecycle` failed, an answer is too large, or the output can't be written
    2  the command line, a file or a variable is wrong; nothing was sent
    3  no process answers on the socket
 64+n  the driver refused with the gRPC code n: 67 INVALID_ARGUMENT, 68 DEADLINE_EXCEEDED,
       69 NOT_FOUND, 70 ALREADY_EXISTS, 72 RESOURCE_EXHAUSTED, 73 FAILED_PRECONDITION,
       74 ABORTED, 75 OUT_OF_RANGE, 76 UNIMPLEMENTED, 77 INTERNAL, 78 UNAVAILABLE
128+n  stopped by signal n: 130 after Ctrl-C; `lifecycle` undoes its steps before";

pub(crate) fn refused(code: Code) -> u8 {
    REFUSED + u8::try_from(code as i32).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::output::code_name;

    #[test]
    fn the_help_tells_the_statuses_that_there_are() {
        for line in HELP.lines().flat_map(|line| line.split([',', ':'])) {
            let mut words = line.split_whitespace();
            if let (Some(number), Some(name), None) = (words.next(), words.next(), words.next())
                && let Ok(status) = number.parse::<i32>()
                && name.chars().all(|letter| letter.is_uppercase() || letter == '_')
            {
                let code = Code::from(status - i32::from(REFUSED));
                assert_eq!((code_name(code).as_str(), i32::from(refused(code))), (name, status));
            }
        }
        assert!(HELP.contains("69 NOT_FOUND") && HELP.contains("78 UNAVAILABLE"));
        assert_eq!(refused(Code::Unauthenticated), 80);
    }
}
