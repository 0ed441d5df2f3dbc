//! `mount` and `umount`.

use crate::support::{World, run, skip};
use std::process::Command;

/// Whether this machine can mount; prints a note if not.
pub(crate) fn can_mount() -> bool {
    match std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse") {
        Ok(_) => true,
        Err(error) => {
            skip(&format!("/dev/fuse cannot be opened ({error}), so \"forebay mount\" was not tested"));
            false
        }
    }
}

#[test]
fn mount_and_umount_a_directory() {
    if !can_mount() {
        return;
    }
    let world = World::up();
    let dir = world.path("mnt");
    std::fs::create_dir(&dir).unwrap();
    world.well(&["mount", "mnt"]);
    std::fs::write(dir.join("f"), "through the mount").unwrap();
    assert_eq!(world.well(&["cat", "/f"]), "through the mount");
    let busy = std::fs::File::open(dir.join("f")).unwrap();
    let user = format!("in use by process {} (", std::process::id());
    world.run(&["umount", "mnt"]).failed(1, &["cannot unmount", &user, "-l"]);
    drop(busy);
    world.well(&["umount", "mnt"]);
    assert!(!dir.join("f").exists());
    world.run(&["umount", "mnt"]).failed(1, &["no service is mounted there"]);

    let service = world.service();
    world.well(&["mount", &service, "mnt", "-o", "rw,noauto,_netdev,ro"]);
    assert_eq!(std::fs::read_to_string(dir.join("f")).unwrap(), "through the mount");
    assert!(std::fs::write(dir.join("g"), "x").is_err(), "it is mounted for reading");
    world.well(&["umount", "--lazy", "mnt"]);
}

/// The process that serves a mount works in another directory than the command.
#[test]
fn settings_and_keys_of_the_working_directory_hold_for_mounts() {
    if !can_mount() {
        return;
    }
    let mut world = World::empty();
    let started = world.start(&["--listen", "127.0.0.1:0"]);
    let address = format!("tcp:{}", started["tcp"].as_str().unwrap());
    std::fs::rename(started["key"].as_str().unwrap(), world.path("own key")).unwrap();
    std::fs::create_dir(world.path("mnt")).unwrap();
    world.write("forebay.toml", format!("[client]\nservice = \"{address}\"\nkey = \"own key\"\n"));
    let ran = |args: &[&str]| {
        let mut command = world.command(args);
        command.env_remove("FOREBAY_SERVICE");
        run(command).well().out
    };
    ran(&["mount", "mnt"]);
    std::fs::write(world.path("mnt/f"), "by TCP").unwrap();
    ran(&["umount", "mnt"]);
    assert_eq!(ran(&["exec", "--intercept", "mount", "--", "cat", "/fb/f"]), "by TCP");
    assert_eq!(ran(&["exec", "--", "bash", "-c", "cd / && read text < /fb/f; echo $text"]), "by TCP\n");
    let option = ["exec", "--key", "own key", "--service", &address, "--intercept"];
    std::fs::remove_file(world.path("forebay.toml")).unwrap();
    for how in ["mount", "library"] {
        let script = "cd /; while read -r text; do echo $text; done < /fb/f; echo $text";
        assert_eq!(ran(&[&option[..], &[how, "--", "bash", "-c", script]].concat()), "by TCP\n", "{how}");
    }
}

#[test]
fn mount_errors_are_reported() {
    let world = World::up();
    std::fs::create_dir(world.path("mnt")).unwrap();
    world.write("file", "x");
    for (code, args, parts) in [
        (1, &["mount", "none"][..], &["cannot mount at", "none"][..]),
        (1, &["mount", "file"], &["not a directory"]),
        (1, &["mount", "unix:/none", "mnt"], &["unix:/none", "is the service up?"]),
        (2, &["mount", "mnt", "-o", "magic"], &["\"magic\" is not an option of the mount"]),
        (2, &["mount"], &["required"]),
        (2, &["mount", "a", "b", "c"], &["forebay mount --help"]),
    ] {
        world.run(args).failed(code, parts);
    }
}

#[test]
fn mount_helper_is_a_link_to_this_program() {
    if !can_mount() {
        return;
    }
    let world = World::up();
    std::fs::create_dir(world.path("mnt")).unwrap();
    let helper = world.path("mount.forebay");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_forebay"), &helper).unwrap();
    let mut command = Command::new(&helper);
    command.arg(world.service()).arg(world.path("mnt")).args(["-n", "-o", "rw"]).env("HOME", world.dir());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    world.well(&["umount", "mnt"]);
}

// In a namespace of its own, so that the machine's own helpers and mounts are not changed.
const FSTAB: &str = r#"set -e
mkdir upper work mnt
mount -t tmpfs none upper; mkdir upper/upper upper/work
mount -t overlay none -o lowerdir=/usr/sbin,upperdir=upper/upper,workdir=upper/work /usr/sbin 2> /dev/null || { echo cannot; exit 0; }
ln -s "$PROGRAM" /usr/sbin/mount.forebay
ln -s "$PROGRAM" /usr/sbin/mount.fuse.forebay
echo "$FOREBAY_SERVICE $PWD/mnt $TYPE noauto,nofail,_netdev,allow_other,x-systemd.automount 0 0" > fstab
mount --fstab "$PWD/fstab" "$PWD/mnt"
echo "by fstab" > mnt/$TYPE
setpriv --reuid 65534 --regid 65534 --clear-groups cat "mnt/$TYPE"
grep -c " - fuse.forebay $FOREBAY_SERVICE .*allow_other" /proc/self/mountinfo
umount "$PWD/mnt"
ls mnt"#;

#[test]
fn fstab_line_mounts_for_all_users() {
    if !can_mount() {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        return skip("only root can mount by fstab, so that was not tested");
    }
    for kind in ["forebay", "fuse.forebay"] {
        let world = World::up();
        std::fs::set_permissions(world.dir(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let mut command = Command::new("unshare");
        command.args(["-m", "bash", "-c", FSTAB]).current_dir(world.dir()).env("HOME", world.dir());
        command.env("FOREBAY_SERVICE", world.service()).env("TYPE", kind);
        command.env("PROGRAM", env!("CARGO_BIN_EXE_forebay"));
        let ran = run(command);
        if ran.out == "cannot\n" {
            return skip("there is no overlay to put a helper of mount into, so fstab was not tested");
        }
        assert_eq!((ran.code, ran.out.as_str()), (0, "by fstab\n1\n"), "{}", ran.err);
        assert_eq!(world.well(&["cat", &format!("/{kind}")]), "by fstab\n");
    }
}
