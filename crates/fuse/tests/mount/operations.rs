//! One table of operations with their results, on a local file system and on the mount.

use crate::shell::Shell;
use crate::world::World;

/// `operation = result`, in the order of execution.
const TABLE: &str = "
open a new rwcx = ok
open b new rwcx = EEXIST
stat new = file 644 1 0
f:a write hello = 5
f:a stat = file 644 1 5
f:a pread 0 9 = \"hello\"
f:a read 9 = \"\"
f:a seek 1 = 1
f:a read 2 = \"el\"
f:a pwrite 8 end = 3
f:a pread 0 20 = \"hello...end\"
f:a truncate 3 = ok
f:a truncate 6 = ok
f:a pread 0 20 = \"hel...\"
f:a seek-end = 6
f:a sync = ok
f:a datasync = ok
open r new r = ok
f:r write x = EBADF
f:r truncate 0 = EINVAL
open w new w = ok
f:w pread 0 1 = EBADF
close w = ok
open p new rwa = ok
f:p write ++ = 2
f:p pwrite 0 at-end = 6
f:r pread 0 30 = \"hel...++at-end\"
open s new ws = ok
f:s pwrite 0 H = 1
f:r pread 0 3 = \"Hel\"
open t new rwt = ok
f:r stat = file 644 1 0
f:a pwrite 0 0123456789 = 10
f:a fallocate hole 2 3 = ok
f:r pread 0 20 = \"01...56789\"
f:a fallocate plain 5 10 = ok
f:a stat = file 644 1 15
f:a fallocate keep 0 100 = ok
f:a stat = file 644 1 15
f:a fallocate plain 0 1 = ok
f:a stat = file 644 1 15
f:a fallocate hole 0 0 = EINVAL
f:r fallocate plain 0 1 = EBADF
f:a lock = ok
f:r lock = EAGAIN
close a = ok
f:r lock = ok
truncate new 4 = ok
stat new = file 644 1 4
truncate missing 4 = ENOENT
mkdir d 755 = ok
mkdir d 755 = EEXIST
mkdir d/e 1700 = ok
stat d = dir 755 3
stat d/e = dir 1700 2
list d = [e/]
list . = [d/ new]
list new = ENOTDIR
list missing = ENOENT
rmdir d = ENOTEMPTY
rmdir new = ENOTDIR
unlink d = EISDIR
truncate d 0 = EISDIR
open x d rw = EISDIR
open x d rd = ok
open x new rd = ENOTDIR
open x new/y r = ENOTDIR
open x missing/y rwc = ENOENT
mknod node 640 = ok
mknod node 640 = EEXIST
lstat node = file 640 1 0
unlink node = ok
link new second = ok
stat second = file 644 2 4
link new second = EEXIST
link d third = EPERM
link missing third = ENOENT
rename new second = ok
stat new = file 644 2 4
unlink second = ok
f:r stat = file 644 1 4
symlink new way = ok
symlink new way = EEXIST
lstat way = link 777 1 3
stat way = file 644 1 4
readlink way = new
readlink new = EINVAL
open n way rn = ELOOP
symlink loop loop = ok
stat loop = ELOOP
unlink loop = ok
symlink gone dangling = ok
stat dangling = ENOENT
open n dangling rwcx = EEXIST
open n dangling rwc = ok
stat gone = file 644 1 0
unlink dangling = ok
unlink gone = ok
f:n write still = 5
f:n pread 0 9 = \"still\"
f:n stat = file 644 0 5
close n = ok
rename d/e new = ENOTDIR
rename new d = EISDIR
rename d d/e/f = EINVAL
rename d/e e = ok
rename e d = ok
stat d = dir 1700 2
rename missing x = ENOENT
mkdir full 755 = ok
mkdir full/in 755 = ok
rename d full = ENOTEMPTY
rename new way no-replace = EEXIST
rename new fresh no-replace = ok
rename fresh new = ok
rename d full swap = ok
list d = [in/]
list full = []
rename d gone swap = ENOENT
open u over rwc = ok
f:u write old = 3
open v upper rwc = ok
f:v write new = 3
rename upper over = ok
f:u pread 0 9 = \"old\"
f:u stat = file 644 0 3
f:v stat = file 644 1 3
unlink over = ok
chmod new 4755 = ok
stat new = file 4755 1 4
f:r chmod 600 = ok
stat new = file 600 1 4
chown new 1234 1235 = ok
chmod new 6755 = ok
chown new 1236 1237 = ok
stat new = file 755 1 4
chmod missing 600 = ENOENT
utimens new 1000000000 1100000000 = ok
times new = 1000000000.7 1100000000.7
utimens new 0 -5 = ok
times new = 0.7 -5.7
setxattr new user.a one any = ok
setxattr new user.a two create = EEXIST
setxattr new user.b two replace = ENODATA
setxattr new user.b two create = ok
getxattr new user.a 9 = 3 one
getxattr new user.a 2 = ERANGE
getxattr new user.c 9 = ENODATA
listxattr new = [user.a user.b]
removexattr new user.a = ok
removexattr new user.a = ENODATA
listxattr new = [user.b]
access new 4 = ok
access new 1 = ok
chmod new 600 = ok
access new 1 = EACCES
access missing 0 = ENOENT
open l long:255 rwc = ok
stat long:255 = file 644 1 0
unlink long:255 = ok
open l long:256 rwc = ENAMETOOLONG
mkdir long:256 755 = ENAMETOOLONG
unlink long:256 = ENAMETOOLONG
stat long:256 = ENAMETOOLONG
unlink . = EISDIR
rmdir d/. = EINVAL
rmdir d/.. = ENOTEMPTY
unlink new = ok
unlink new = ENOENT
unlink way = ok
list . = [d/ full/]
";

fn check(root: &std::path::Path, file_system: &str) {
    let mut shell = Shell::new(root);
    let lines = TABLE.lines().filter(|line| !line.is_empty());
    let mut wrong = Vec::new();
    for line in lines {
        let (operation, expected) = line.split_once(" = ").expect("operation = result");
        let found = shell.run(operation);
        if found != expected {
            wrong.push(format!("{operation}: {found} instead of {expected}"));
        }
    }
    assert!(wrong.is_empty(), "{file_system}:\n{}", wrong.join("\n"));
}

#[test]
fn operations_give_the_same_results_as_on_a_local_file_system() {
    let Some(world) = World::new("allow_other,suid") else { return };
    check(&world.local(), "local");
    check(&world.at(), "mount");
}

#[test]
fn operations_give_the_same_results_over_three_servers() {
    let Some(world) = World::of(3, "allow_other,suid") else { return };
    world.stripe();
    check(&world.at(), "mount");
}
