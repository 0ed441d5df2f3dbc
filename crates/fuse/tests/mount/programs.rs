//! Unmodified programs behave on the mount as on a local file system.
//!
//! Each script runs twice, in an empty directory on each file system, and has to print the same: most print what they
//! created, with checksums. `$SRC` is a local tree with files of many sizes, links and odd modes.

use crate::world::{World, skip};
use std::path::Path;
use std::process::{Command, Stdio};

/// Prints everything about a tree that has to match.
const SHOW: &str = "show() { (cd \"$1\" && find . -type d -printf '%p %m\\n' | sort && \
    find . ! -type d -printf '%p %y %m %s %n %TY%Tm%TdT%TH%TM%TS %l\\n' | sort && \
    find . -type f -exec sha256sum {} + | sort); }\n";

const SOURCE: &str = r#"
umask 022
mkdir -p deep/er/est empty "with space"
i=0; for size in 0 1 511 4096 4097 65536 1048577 3000000; do
    head -c $size /dev/zero | tr '\0' "$(printf "\\$(printf %03o $((65 + i)))")" >deep/f$i; i=$((i + 1))
done
seq 20000 >deep/er/numbers; echo x >"with space/a b"; ln deep/f1 hard; ln -s deep/er/numbers soft; ln -s gone dangling
chmod 600 deep/f2; chmod 755 deep/f3; chmod 1777 empty; touch -d '2001-02-03 04:05:06.789' deep/f4
truncate -s 5M deep/sparse; printf end >>deep/sparse
# An old time: rsync keeps the time of a file that it has created in the same second.
find . ! -name f4 -exec touch -h -d '2002-03-04 05:06:07.891' {} +
"#;

const STATIC: &str = r#"
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
int main(void) {
    int f = open("static", O_RDWR | O_CREAT | O_TRUNC, 0644);
    char block[4096], back[4096];
    for (int i = 0; i < 256; i++) { memset(block, i, sizeof block); if (pwrite(f, block, sizeof block, i * 4096L) != 4096) return 1; }
    char *map = mmap(0, 256 * 4096, PROT_READ | PROT_WRITE, MAP_SHARED, f, 0);
    if (map == MAP_FAILED) return 2;
    for (int i = 0; i < 256; i++) { if (map[i * 4096L + 7] != (char)i) return 3; map[i * 4096L] = '!'; }
    if (msync(map, 256 * 4096, MS_SYNC)) return 4;
    if (pread(f, back, 4096, 8192) != 4096 || back[0] != '!' || back[1] != 2) return 5;
    block[0] = '?'; if (pwrite(f, block, 1, 100) != 1 || map[100] != '?') return 6;
    if (munmap(map, 256 * 4096) || fsync(f) || close(f)) return 7;
    puts("done"); return 0;
}
"#;

const PYTHON: &str = r#"
import hashlib, mmap, multiprocessing, os, shutil, sys
def part(n):
    with open('shared', 'r+b') as f:
        f.seek(n * 100000); f.write(bytes([n]) * 100000)
    return n
def main():
    shutil.copytree(os.environ['SRC'], 'tree', symlinks=True)
    for root, dirs, files in sorted(os.walk('tree')):
        print(root, sorted(dirs), [(f, os.lstat(os.path.join(root, f)).st_size) for f in sorted(files)])
    open('shared', 'wb').truncate(800000)
    with multiprocessing.Pool(4) as pool: print(sum(pool.map(part, range(8))))
    print(hashlib.sha256(open('shared', 'rb').read()).hexdigest())
    with open('shared', 'r+b') as f:
        m = mmap.mmap(f.fileno(), 0); m[5:10] = b'hello'; print(m.find(b'hello'), m[99999:100001]); m.flush(); m.close()
    print(open('shared', 'rb').read(12))
    shutil.move('tree', 'moved'); shutil.rmtree('moved'); print(os.listdir('.'))
    print(shutil.disk_usage('.').total > 0)
if __name__ == '__main__': main()
"#;

/// Required program, and script.
const SCRIPTS: &[(&str, &str)] = &[
    ("cp", "cp -a $SRC copy; show copy; cp -r copy again; cmp copy/deep/f7 again/deep/f7; rm -rf copy; ls -A"),
    ("tar", "tar cf a.tar -C $SRC .; sha256sum a.tar; mkdir x; tar xpf a.tar -C x; show x; tar czf - x | tar tzf - | sort"),
    ("rsync", "rsync -aH --checksum $SRC/ r/; show r; echo more >>r/hard; rsync -aHi --checksum $SRC/ r/ | sort; show r"),
    (
        "git",
        "export GIT_AUTHOR_DATE='2024-01-01T00:00:00Z' GIT_COMMITTER_DATE='2024-01-01T00:00:00Z' HOME=$PWD
         git -c init.defaultBranch=main init -q repo; cd repo; git config user.name n; git config user.email e@e
         cp -r $SRC/. .; git add -A; git commit -qm one; seq 999 >new; git add new; git commit -qm two; git gc -q
         git fsck --full 2>&1 | grep -v '^dangling'; git clone -q . ../clone; git -C ../clone log --format=%H
         cd ../clone; git checkout -q -b side HEAD~1; echo x >side; git add side; git -c user.name=n -c user.email=e commit -qm side
         git -c user.name=n -c user.email=e merge -q main -m merged; git status --short; git ls-files -s | sha256sum",
    ),
    (
        "sqlite3",
        "for mode in delete wal; do
           sqlite3 $mode.db \"pragma journal_mode=$mode; create table t(a integer primary key, b text);
             with recursive n(i) as (select 1 union all select i+1 from n where i<5000) insert into t select i, 'row '||i from n;
             create index ib on t(b); update t set b=b||'!' where a%3=0; delete from t where a%7=0; vacuum; pragma integrity_check;\"
           sqlite3 $mode.db .dump | sha256sum; sqlite3 $mode.db 'select count(*), max(b) from t'
         done",
    ),
    (
        "sort",
        "seq 60000 | sort -R --random-source=/dev/zero >n; sort -n -T . -S 100K n -o n; sha256sum n
         find . -size +100k -name 'n*'; gzip -kn n; sha256sum n.gz; gunzip -c n.gz | cmp - n; split -l 7000 n part.; cat part.* | cmp - n
         tac n | head -2; sed -i s/9/x/ n; sha256sum n; awk '{ print >> ($1 % 4) }' part.aa; wc -l 0 1 2 3",
    ),
    (
        "dd",
        "f=$SRC/deep/f6; for how in '' conv=notrunc conv=fsync conv=fdatasync conv=sparse conv=sync conv=noerror conv=ucase \
           conv=swab oflag=append,dsync oflag=sync oflag=dsync oflag=nofollow oflag=noatime oflag=nonblock oflag=seek_bytes; do
           dd if=$f of=out bs=10000 $how 2>/dev/null; echo $how $?; sha256sum <out; done
         dd if=$f of=out bs=4096 seek=9 count=3 conv=notrunc 2>/dev/null; sha256sum <out
         dd if=$f of=out2 conv=excl bs=1M 2>/dev/null; echo $?; dd if=$f of=out2 conv=excl bs=1M 2>/dev/null; echo $?
         dd if=$f of=out3 conv=nocreat bs=1M 2>/dev/null; echo $?
         dd if=$SRC/deep/f7 of=direct bs=4096 count=600 oflag=direct 2>/dev/null; echo $?; sha256sum <direct
         dd if=direct bs=64K iflag=direct 2>/dev/null | sha256sum; dd if=out bs=1000 skip=3 count=2 2>/dev/null | sha256sum",
    ),
    ("python3", "python3 $TOOLS/script.py"),
    ("cc", "cp $TOOLS/static .; ./static; echo $?; sha256sum static"),
    (
        "fio",
        "run() { fio --output=/dev/null --directory=. --size=8M --verify=crc32c --do_verify=1 --verify_fatal=1 --randseed=7 --allow_file_create=1 \"$@\"; echo $?; rm -f *.0; }
         run --name=seq --ioengine=psync --rw=write --bs=1M --numjobs=2
         run --name=rand --ioengine=psync --rw=randwrite --bs=4k --numjobs=2
         run --name=mixed --ioengine=psync --rw=randrw --bs=16k --numjobs=2
         run --name=mapped --ioengine=mmap --rw=randwrite --bs=4k
         run --name=direct --ioengine=psync --direct=1 --rw=write --bs=64k
         run --name=fsync --ioengine=sync --rw=write --bs=64k --fsync=8",
    ),
    (
        "sh",
        "(echo a; echo b) >two; cat two; exec 3>three; echo x >&3; rm three; echo y >&3; exec 3>&-; ls -A; mkdir -p a/b/c; mv a/b d
         ls -R; ln -s d l; ls l/; cd d; pwd | sed 's|.*/||'; touch -d @5 c; stat -c '%Y %F' c; cd ..; rm -r a d l; ls -A; test -e a; echo $?",
    ),
];

fn sh(dir: &Path, script: &str, around: &[(&str, &Path)]) -> (String, bool) {
    let mut command = Command::new("bash");
    command.args(["-c", &format!("{SHOW}{script}")]).current_dir(dir).stdin(Stdio::null());
    command.env("LC_ALL", "C").env("TZ", "UTC").envs(around.iter().copied());
    let output = command.output().unwrap();
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stderr));
    (text, output.status.success())
}

fn has(program: &str) -> bool {
    sh(Path::new("/"), &format!("command -v {program}"), &[]).1
}

/// The first line in which two texts differ.
fn difference(local: &str, mount: &str) -> Option<String> {
    let (mut local, mut mount) = (local.lines(), mount.lines());
    loop {
        match (local.next(), mount.next()) {
            (None, None) => return None,
            (one, other) if one == other => {}
            (one, other) => return Some(format!("local {one:?}, mount {other:?}")),
        }
    }
}

#[test]
fn programs_behave_as_on_a_local_file_system() {
    let Some(world) = World::new("suid") else { return };
    let (local, mount) = (world.local(), world.at());
    let (source, tools) = (local.join("source"), local.join("tools"));
    std::fs::create_dir(&source).unwrap();
    std::fs::create_dir(&tools).unwrap();
    assert!(sh(&source, SOURCE, &[]).1, "cannot create the sample tree");
    std::fs::write(tools.join("script.py"), PYTHON).unwrap();
    std::fs::write(tools.join("static.c"), STATIC).unwrap();
    if has("cc") {
        let (output, compiled) = sh(&tools, "cc -static -O1 -o static static.c", &[]);
        assert!(compiled, "{output}");
    }
    let around = [("SRC", source.as_path()), ("TOOLS", tools.as_path())];
    let mut wrong = Vec::new();
    for (program, script) in SCRIPTS {
        if !has(program) {
            skip(&format!("{program} is not installed"));
            continue;
        }
        let run = |root: &Path| {
            let dir = root.join(format!("run-{program}"));
            std::fs::create_dir(&dir).unwrap();
            sh(&dir, script, &around).0
        };
        if let Some(line) = difference(&run(&local), &run(&mount)) {
            wrong.push(format!("{program}: {line}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
