//! Two users on one mount, and what modes, owners, groups and the sticky bit allow.

use crate::world::World;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

const ALICE: u32 = 54_001;
const BOB: u32 = 54_002;

/// `user: command = output and exit code`, in order.
const TABLE: &str = "
alice: umask 077; echo secret >secret; cat secret = secret 0
bob: cat secret = 1
bob: echo x >secret = 2
bob: echo x >>secret = 2
bob: rm -f secret = 1
bob: mv secret mine = 1
bob: chmod 777 secret = 1
bob: touch secret = 1
bob: test $(cat /proc/sys/fs/protected_hardlinks) = 0 || ln secret mine = 1
alice: ln secret mine; stat -c %h secret = 2 0
alice: umask 022; echo open >open = 0
bob: cat open = open 0
bob: echo x >>open = 2
bob: touch -d 2001-01-01 open = 1
alice: chmod 666 open = 0
bob: echo more >>open; cat open = open more 0
bob: touch open; echo $? = 0 0
alice: mkdir -m 700 private; echo deep >private/deep; chmod 666 private/deep = 0
bob: ls private = 2
bob: cat private/deep = 1
bob: stat private/deep >/dev/null = 1
alice: chmod 711 private = 0
bob: ls private = 2
bob: cat private/deep = deep 0
alice: chmod 644 private = 0
bob: ls private >/dev/null; cat private/deep = 1
alice: chmod 755 private; mkdir -m 1777 sticky; echo a >sticky/a = 0
bob: echo b >sticky/b; rm -f sticky/a = 1
bob: mv sticky/a sticky/c = 1
alice: rm -f sticky/b; ls sticky = a 0
alice: echo g >group; chgrp 54010 group; chmod 640 group = 0
bob: cat group = g 0
bob: echo x >>group = 2
bob: chgrp 54010 secret = 1
alice: mkdir shared; chgrp 54010 shared; chmod 2775 shared = 0
bob: mkdir shared/sub; echo x >shared/file; stat -c '%g %a' shared/sub shared/file = 54010 2755 54010 644 0
alice: printf '#!/bin/sh\\necho ran\\n' >tool; chmod 711 tool = 0
alice: cp /bin/true only-run; chmod 711 only-run; ./only-run; echo $? = 0 0
bob: ./only-run; echo $? = 0 0
bob: cat only-run >/dev/null = 1
alice: chmod 600 only-run = 0
bob: ./only-run = 126
bob: test -r secret; echo $? = 1 0
bob: test -x open; echo $? = 1 0
alice: cp /bin/true suid; chmod 6777 suid; stat -c %a suid = 6777 0
bob: echo >>suid; stat -c %a suid = 777 0
alice: chmod 6777 suid; truncate -s 3 suid; stat -c %a suid = 777 0
alice: chmod 6777 suid; : >suid; stat -c %a suid = 777 0
";

fn run(root: &Path, uid: u32, script: &str) -> String {
    let mut command = Command::new("setpriv");
    let (user, group) = (format!("--reuid={uid}"), format!("--regid={uid}"));
    command.args([user.as_str(), &group, "--groups=54010", "sh", "-c", script]);
    command.current_dir(root).stdin(Stdio::null()).stderr(Stdio::null());
    command.env("LC_ALL", "C");
    let output = command.output().unwrap();
    let mut words: Vec<String> =
        String::from_utf8_lossy(&output.stdout).split_whitespace().map(str::to_owned).collect();
    words.push(output.status.code().unwrap_or(-1).to_string());
    words.join(" ")
}

fn check(root: &Path, kind: &str) {
    std::fs::set_permissions(root, PermissionsExt::from_mode(0o1777)).unwrap();
    let mut wrong = Vec::new();
    for line in TABLE.lines().filter(|line| !line.is_empty()) {
        let (who, rest) = line.split_once(": ").unwrap();
        let (script, expected) = rest.rsplit_once(" = ").unwrap();
        let found = run(root, if who == "alice" { ALICE } else { BOB }, script);
        if found != expected {
            wrong.push(format!("{who}: {script}: {found} instead of {expected}"));
        }
    }
    assert!(wrong.is_empty(), "{kind}:\n{}", wrong.join("\n"));
}

#[test]
fn two_users_get_the_same_access_as_on_a_local_file_system() {
    let Some(world) = World::new("allow_other,suid") else { return };
    check(&world.local(), "local");
    check(&world.at(), "mount");
}

/// The kernel opens pipes and devices itself: where it does not check permissions, they must not be accessible.
#[test]
fn special_files_are_refused_without_default_permissions() {
    let Some(mut world) = World::new("allow_other") else { return };
    let open = world.at();
    std::fs::set_permissions(&open, PermissionsExt::from_mode(0o777)).unwrap();
    assert_eq!(run(&open, ALICE, "mkfifo pipe"), "1");
    let checked = world.mount("checked", "allow_other,default_permissions");
    assert_eq!(run(&checked, ALICE, "mkfifo -m 600 pipe; stat -c '%F %a' pipe"), "fifo 600 0");
    assert_eq!(run(&checked, ALICE, "(echo through >pipe &) ; cat pipe"), "through 0");
    assert_eq!(run(&checked, BOB, "timeout 5 cat pipe"), "1", "its mode denies access");
    assert_eq!(run(&open, ALICE, "stat -c '%F %a' pipe; cat pipe"), "regular empty file 0 1");
    assert_eq!(run(&open, BOB, "timeout 5 cat pipe"), "1");
    assert_eq!(run(&open, ALICE, "rm -f pipe; ls"), "0");
}

#[test]
fn other_users_have_no_access_without_allow_other() {
    let Some(world) = World::new("") else { return };
    std::fs::write(world.at().join("f"), b"x").unwrap();
    assert_eq!(run(world.at().parent().unwrap(), ALICE, "ls mnt; cat mnt/f"), "1");
}
