//! The quickstart as an ordinary user, and its command line. As root, the tests run it as the user nobody.

mod support;

use support::{Place, text};

#[test]
fn an_ordinary_user_runs_dirs_and_learns_why_block_is_left_out() {
    let place = Place::of_a_user();
    for _ in 0..2 {
        let output = place.run(&[]);
        let text = text(&output);
        assert_eq!(output.status.code(), Some(0), "{text}");
        assert!(text.contains("user and mount namespace") && text.contains("success"), "{text}");
        assert!(text.contains("only root can attach loop devices"), "{text}");
        place.assert_clean(&text);
    }
}

#[test]
fn ctrl_c_leaves_nothing() {
    for (marker, count) in
        [("directories", 1), ("start the driver", 1), ("NodePublishVolume", 1), ("NodePublishVolume", 2)]
    {
        let place = Place::of_a_user();
        let (status, text) = place.interrupt_at(marker, count);
        assert_eq!(status, Some(130), "{text}");
        place.assert_clean(&text);
    }
}

#[test]
fn what_can_not_run_is_refused_before_anything_is_made() {
    let place = Place::of_a_user();
    for (arguments, says) in [
        (&["--fs", "nonsense"][..], "usage: quickstart"),
        (&["--wrong"], "usage: quickstart"),
        (&["--only", "block"], "run the quickstart as root"),
    ] {
        let output = place.run(arguments);
        let text = text(&output);
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains(says) && output.stdout.is_empty(), "{text}");
        place.assert_clean(&text);
    }
}

#[test]
fn a_directory_for_temporary_files_that_can_not_be_used_is_named() {
    let place = Place::of_a_user();
    let long = place.path().join("x".repeat(100));
    std::fs::create_dir(&long).unwrap();
    for (path, says) in
        [(place.path().join("absent"), "use an existing directory"), (long.clone(), "107 bytes")]
    {
        let output = place.command(&[]).env("TMPDIR", &path).output().unwrap();
        let text = text(&output);
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains(says), "{text}");
    }
    std::fs::remove_dir(long).unwrap();
    place.assert_clean("");
}

#[test]
fn help_explains_every_option() {
    let output = Place::of_a_user().run(&["--help"]);
    let text = text(&output);
    assert_eq!(output.status.code(), Some(0));
    for option in ["--fs", "--only", "--keep", "exit status", "NO_COLOR"] {
        assert!(text.contains(option), "{option}: {text}");
    }
}
