//! The completion scripts for shells.

use std::process::Command;

use crate::support::*;

fn script(shell: &str) -> String {
    ok(&run("/none".as_ref(), &["completion", shell]))
}

#[test]
fn each_shell_has_a_script_that_knows_every_command() {
    for (shell, start) in [("bash", "_csi()"), ("zsh", "#compdef csi"), ("fish", "__fish_csi")] {
        let script = script(shell);
        assert!(script.contains(start), "{shell}");
        for word in ["snapshot-metadata", "create-group-snapshot", "no-mount-access", "staging-target-path"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
    let shown = errors(&run("/none".as_ref(), &["completion", "tcsh"]), 2);
    assert!(shown.contains("[possible values: bash"), "{shown}");
}

#[test]
fn bash_completes_by_it() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("csi.bash");
    std::fs::write(&file, script("bash")).unwrap();
    for (words, due) in [
        ("csi contr", "controller"),
        ("csi controller create-v", "create-volume"),
        ("csi node publish-volume --target", "--target-path"),
        ("csi lifecycle --no-m", "--no-mount-access"),
        ("csi --output j", "json"),
    ] {
        let complete = r#"
            source "$0"
            COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_TYPE=9
            _csi csi "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
            printf '%s\n' "${COMPREPLY[@]}"
        "#;
        let mut bash = Command::new("bash");
        bash.args(["--norc", "-c", complete]).arg(&file).args(words.split(' '));
        let output = bash.output().unwrap();
        assert_eq!(ok(&output).trim(), due, "{words}: {}", stderr(&output));
    }
}
