//! ls, stat, rm, mv, mkdir, ln, df, du.

use crate::support::World;

fn world() -> World {
    let world = World::up();
    world.write("five", "12345");
    world.well(&["mkdir", "-p", "/d/sub/deep"]);
    world.well(&["put", "five", "/d/b"]);
    world.well(&["put", "five", "/d/sub/c"]);
    world.well(&["put", "five", "/d/.hidden"]);
    world.well(&["ln", "-s", "b", "/d/link"]);
    world
}

#[test]
fn listings() {
    let world = world();
    for (args, expected) in [
        (&["ls"][..], "d\n"),
        (&["ls", "/d"], "b\nlink\nsub\n"),
        (&["ls", "-a", "d"], ".hidden\nb\nlink\nsub\n"),
        (&["ls", "/d/b"], "/d/b\n"),
        (&["ls", "/d/sub/deep"], ""),
        (&["ls", "-R", "/d"], "/d:\nb\nlink\nsub\n\n/d/sub:\nc\ndeep\n\n/d/sub/deep:\n"),
        (&["ls", "/d/sub", "/d/b"], "/d/sub:\nc\ndeep\n/d/b\n"),
    ] {
        assert_eq!(world.well(args), expected, "{args:?}");
    }
    let long = world.well(&["ls", "-l", "/d"]);
    let lines: Vec<&str> = long.lines().collect();
    assert!(lines[0].starts_with("-rw-r--r--  1  ") && lines[0].ends_with("Z  b"), "{long}");
    assert!(lines[1].starts_with("lrwxrwxrwx") && lines[1].ends_with("link -> b"), "{long}");
    assert!(lines[2].starts_with("drwxr-xr-x  3  "), "{long}");
    let all = world.json(&["ls", "-R", "-a", "--json", "/d"]);
    let paths: Vec<&str> =
        all.as_array().unwrap().iter().map(|entry| entry["path"].as_str().unwrap()).collect();
    assert_eq!(paths, ["/d/.hidden", "/d/b", "/d/link", "/d/sub", "/d/sub/c", "/d/sub/deep"]);
    assert_eq!(
        (&all[1]["size"], &all[1]["kind"], &all[1]["mode"]),
        (&5.into(), &"file".into(), &"0644".into())
    );
    assert_eq!(all[2]["target"], "b");
}

#[test]
fn facts_about_files() {
    let world = world();
    world.well(&["ln", "/d/b", "/d/second"]);
    let facts = world.json(&["stat", "--json", "/d/b", "/d/second", "/d/link", "/"]);
    assert_eq!(facts[0]["id"], facts[1]["id"]);
    assert_eq!(facts[0]["links"], 2);
    assert_eq!((&facts[2]["kind"], &facts[2]["target"]), (&"symlink".into(), &"b".into()));
    assert_eq!((&facts[3]["kind"], &facts[3]["mode"]), (&"directory".into(), &"1777".into()));
    let shown = world.well(&["stat", "/d/b"]);
    for part in
        ["/d/b\n", "kind      file", "2 links", "size      5 (5 B), 5 B in the buffer", "0644 -rw-r--r--"]
    {
        assert!(shown.contains(part), "{part} is not in {shown}");
    }
}

#[test]
fn moving_and_removing() {
    let world = world();
    world.well(&["mv", "/d/b", "/d/renamed"]);
    world.well(&["mv", "/d/renamed", "/d/link", "/d/sub"]);
    assert_eq!(world.well(&["ls", "/d/sub"]), "c\ndeep\nlink\nrenamed\n");
    world.run(&["mv", "/d", "/d/sub"]).failed(1, &["cannot move /d to /d/sub/d", "into itself"]);
    world.run(&["mkdir", "/d"]).failed(1, &["cannot make directory /d", "already exists: "]);
    world.well(&["mkdir", "-p", "/d", "/d/sub/x/y"]);
    world.run(&["rm", "/d"]).failed(1, &["cannot remove /d: it is a directory: use \"forebay rm -r\""]);
    world.run(&["rm", "/none"]).failed(1, &["cannot stat /none: no \"none\": look for it with"]);
    world.run(&["rm", "-r", "/"]).failed(1, &["/ has no file name"]);
    world.well(&["rm", "-f", "/none"]);
    let ran = world.run(&["rm", "/none", "/d/sub/c"]);
    ran.failed(1, &["/none"]);
    world.well(&["rm", "-r", "/d"]);
    assert_eq!(world.well(&["ls", "-a"]), "");
}

#[test]
fn sums_and_space() {
    let world = world();
    world.well(&["ln", "/d/b", "/d/again"]);
    assert_eq!(world.well(&["du", "-s", "/d/sub"]), "5 B  1 file  /d/sub\n");
    let sums = world.json(&["du", "--json", "/d"]);
    let paths: Vec<&str> = sums.as_array().unwrap().iter().map(|sum| sum["path"].as_str().unwrap()).collect();
    assert_eq!(paths, ["/d/sub/deep", "/d/sub", "/d"]);
    // b counts once although it has two names, beside c, .hidden and the link.
    assert_eq!((&sums[2]["files"], &sums[2]["size"]), (&4.into(), &16.into()));
    let usage = world.json(&["df", "--json"]);
    assert_eq!(usage["capacity"], 128_u64 << 20);
    assert_eq!(usage["live"], 15);
    let shown = world.well(&["df"]);
    assert!(shown.starts_with("capacity") && shown.contains("128 MiB"), "{shown}");
}
