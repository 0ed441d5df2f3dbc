//! A suite of others through the library, and programs of others through a whole run: what they leave behind is what
//! they leave on a local disk.

use crate::world::{World, has, skip, succeed};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

const SETTINGS: &str = r#"
[features]
posix_fallocate = {}
rename_ctime = {}
utime_now = {}
utimensat = {}
[settings]
naptime = 0.01
allow_remount = false
[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"]]
"#;

/// Checks that pass on tmpfs and not through the library, and why.
const DIFFERENT: [(&str, &str); 3] = [
    ("open::etxtbsy ok", "a program is run from a copy in memory, so its file may be written to"),
    ("truncate::etxtbsy ok", "as above"),
    ("rmdir::ebusy ok", "nothing can be mounted on a directory that only the library knows"),
];

/// Every check that passes.
fn passing(mut command: Command, settings: &Path, dir: &Path) -> BTreeSet<String> {
    let output = command.arg("-c").arg(settings).arg("-p").arg(dir).output().expect("it runs");
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let lines = stdout.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    lines.filter(|line| line.contains("::") && line.ends_with(" ok")).collect()
}

#[test]
fn pjdfstest_checks_that_pass_on_tmpfs_pass_through_the_library() {
    if !rustix::process::geteuid().is_root() || Command::new("pjdfstest").arg("--help").output().is_err() {
        return skip("not root, or pjdfstest is not installed: cargo install pjdfstest");
    }
    let world = World::new();
    let settings = world.path("settings");
    std::fs::write(&settings, SETTINGS).expect("a file");
    let base = if Path::new("/dev/shm").is_dir() { PathBuf::from("/dev/shm") } else { world.path("") };
    let local = tempfile::Builder::new().prefix("fb-checks-").tempdir_in(base).expect("a directory");
    let mut shell = world.command("sh");
    shell.args(["-c", "chmod 777 /fb \"$1\" && mkdir -m 777 /fb/checks", "sh"]).arg(local.path());
    succeed(shell);
    let expected = passing(Command::new("pjdfstest"), &settings, local.path());
    assert!(expected.len() > 300, "the suite ran: {expected:?}");
    let found = passing(world.command("pjdfstest"), &settings, Path::new("/fb/checks"));
    let known: BTreeSet<String> = DIFFERENT.iter().map(|(check, _)| (*check).to_owned()).collect();
    let differ: BTreeSet<String> = expected.difference(&found).cloned().collect();
    assert_eq!(differ, known, "on tmpfs");
}

/// What a program needs.
enum Needs {
    Tool(&'static str),
    Module(&'static str),
    Rings,
}

/// Three processes write one database at a time. Its pages come in any order, so its rows are compared.
const WAL: &str = r#"cat > $S/wal.py <<'E'
import os, sqlite3, subprocess, sys
def opened(): return sqlite3.connect(os.environ['D'] + '/db', timeout=60, isolation_level=None)
base = opened()
if len(sys.argv) > 1:
    for i in range(40): base.execute('insert into t values (?, ?)', (int(sys.argv[1]), i))
    sys.exit()
assert base.execute('pragma journal_mode=wal').fetchone() == ('wal',)
base.execute('create table t (who, what, unique (who, what))')
writers = [subprocess.Popen([sys.executable, sys.argv[0], str(who)]) for who in range(3)]
assert [writer.wait() for writer in writers] == [0, 0, 0]
E
$PY $S/wal.py"#;
const ROWS_OF_WAL: &str = r#"$PY -c "import sqlite3; base = sqlite3.connect('db')
print(*base.execute('pragma integrity_check'), *base.execute('select * from t order by 1, 2'), sep='\n', file=open('rows', 'w'))
base.close()"; test $(wc -l < rows) = 121; rm db*"#;

const LMDB_OF_THREE: &str = r#"cat > $S/kv.py <<'E'
import lmdb, os, subprocess, sys
def opened(): return lmdb.open(os.environ['D'] + '/kv', map_size=16 << 20, writemap=True)
if len(sys.argv) > 1:
    base = opened()
    for i in range(40):
        with base.begin(write=True) as change:
            change.put(b'%s %d' % (sys.argv[1].encode(), i), b'v' * (i * 50))
            change.put(b'count', b'%d' % (int(change.get(b'count', b'0')) + 1))
    sys.exit()
opened().close()
writers = [subprocess.Popen([sys.executable, sys.argv[0], str(who)]) for who in range(3)]
assert [writer.wait() for writer in writers] == [0, 0, 0]
E
$PY $S/kv.py"#;
const ROWS_OF_LMDB: &str = r#"$PY -c "import lmdb; base = lmdb.open('kv', map_size=16 << 20, readonly=True, lock=False)
with base.begin() as look: print(look.get(b'count'), *look.cursor(), sep='\n', file=open('rows', 'w'))"
test $(wc -l < rows) = 122; rm -r kv"#;

const JOBLIB_OF_THREE: &str = r#"cat > $S/work.py <<'E'
import joblib, numpy, os
array = numpy.memmap(os.environ['D'] + '/array', dtype='f8', mode='w+', shape=(64, 1000))
def work(array, i): array[i] = numpy.arange(1000) * i; return float(array[i].sum())
sums = joblib.Parallel(n_jobs=3)(joblib.delayed(work)(array, i) for i in range(64))
assert sums == [float(array[i].sum()) for i in range(64)], 'the parent sees what the workers stored'
array.flush()
E
$PY $S/work.py"#;

/// A model's file is downloaded from a hub of this process into the cache, which is made of links and lock files, and read.
const HUGGING_FACE: &str = r#"cat > $S/hub.py <<'E'
import http.server, os, threading
text = [f'{word} of number {i % 7}' for i in range(500) for word in ('read', 'write', 'drain')]
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
made = Tokenizer(models.WordLevel(unk_token='?'))
made.pre_tokenizer = pre_tokenizers.Whitespace()
made.train_from_iterator(text, trainers.WordLevelTrainer(special_tokens=['?']))
scratch, place = os.environ['S'] + '/tokenizer.json', os.environ['D']
made.save(scratch)
content = open(scratch, 'rb').read()
class Hub(http.server.BaseHTTPRequestHandler):
    def do_HEAD(self, body=b''):
        self.send_response(200)
        for name, value in [('ETag', '"' + 'e' * 40 + '"'), ('X-Repo-Commit', 'c' * 40), ('Content-Length', len(content))]:
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(body)
    def do_GET(self): self.do_HEAD(content)
    def log_message(self, *_): pass
server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Hub)
threading.Thread(target=server.serve_forever, daemon=True).start()
os.environ.update(HF_ENDPOINT=f'http://127.0.0.1:{server.server_port}', HF_HOME=os.environ['S'] + '/home', HF_HUB_DISABLE_XET='1')
import huggingface_hub as hub
path = hub.hf_hub_download('me/model', 'tokenizer.json', cache_dir=place + '/hub')
server.shutdown()
assert hub.hf_hub_download('me/model', 'tokenizer.json', cache_dir=place + '/hub', local_files_only=True) == path
found = hub.scan_cache_dir(place + '/hub')
ids = Tokenizer.from_file(path).encode('write of number 3').ids
print(os.path.relpath(path, place), os.path.islink(path), found.size_on_disk == len(content), ids, file=open(place + '/said', 'w'))
E
$PY $S/hub.py"#;

/// Programs that leave files in `$D`, which is a new directory, and what is done to these files before they are compared.
const RUNS: [(Needs, &str, &str); 12] = [
    (Needs::Module("sqlite3"), WAL, ROWS_OF_WAL),
    (Needs::Module("lmdb"), LMDB_OF_THREE, ROWS_OF_LMDB),
    (Needs::Module("joblib"), JOBLIB_OF_THREE, ""),
    (
        Needs::Tool("sqlite3"),
        "sqlite3 $D/db 'pragma journal_mode=wal; create table t(a, b); insert into t select value, value * 2 from generate_series(1, 3000);'
         sqlite3 $D/db 'delete from t where a % 3 = 0; update t set b = a; vacuum;'; sqlite3 $D/db 'select sum(b) from t' > $D/sum",
        "",
    ),
    (
        Needs::Module("lmdb"),
        "$PY -c \"import lmdb, os; d = os.environ['D']; e = lmdb.open(d + '/kv', map_size=1 << 24)
for r in range(20):
    with e.begin(write=True) as t: [t.put(b'%d' % i, b'v' * (i % 500)) for i in range(r * 50, r * 50 + 50)]
e.copy(d, compact=True); e.close()\"; rm -r $D/kv; test -s $D/data.mdb",
        "",
    ),
    (
        Needs::Module("joblib"),
        "$PY -c \"import joblib, numpy, os; d = os.environ['D']; joblib.dump(numpy.arange(300000.0), d + '/a')
b = joblib.load(d + '/a', mmap_mode='r')
s = joblib.Parallel(n_jobs=2)(joblib.delayed(numpy.sum)(b[i:i + 30000]) for i in range(0, 300000, 30000))
open(d + '/sum', 'w').write(str(sum(s)))\"",
        "",
    ),
    (
        Needs::Module("safetensors.numpy"),
        "$PY -c \"import numpy, os; from safetensors.numpy import load_file, save_file; p = os.environ['D'] + '/model'
save_file({'a': numpy.arange(100000, dtype=numpy.float32), 'b': numpy.ones((3, 5))}, p)
open(p + '.sum', 'w').write(str(load_file(p)['a'].sum()))\"",
        "",
    ),
    (Needs::Module("tokenizers, huggingface_hub"), HUGGING_FACE, ""),
    (
        Needs::Module("lmdb, venv"),
        "$PY -m venv --without-pip $D/venv; cd $D/venv/lib/python3*/site-packages
         cp -r $($PY -c 'import lmdb, os; print(os.path.dirname(lmdb.__file__))') .; cd $D
         cp venv/lib/python3*/site-packages/lmdb/*.so .; venv/bin/python -c 'import lmdb; from lmdb import cpython; print(cpython.__file__.split(\"venv\")[-1], lmdb.version())' > said; rm -r venv",
        "",
    ),
    (
        Needs::Tool("fio"),
        "cd $S; fio --name=job --directory=$D --size=4m --rw=randwrite --bs=16k --iodepth=8 --numjobs=2 --ioengine=libaio --buffer_pattern=0x5eed --verify=pattern --verify_pattern=0x5eed --minimal > /dev/null",
        "",
    ),
    (
        Needs::Rings,
        "cd $S; fio --name=job --directory=$D --size=4m --rw=randwrite --bs=16k --iodepth=8 --numjobs=2 --ioengine=io_uring --buffer_pattern=0x5eed --verify=pattern --verify_pattern=0x5eed --minimal > /dev/null",
        "",
    ),
    (Needs::Tool("rclone"), "mkdir -p $S/from/sub; seq 50000 > $S/from/sub/a; seq 9 > $S/from/b; rclone copy $S/from $D", ""),
];

fn python() -> PathBuf {
    std::env::var_os("FOREBAY_PYTHON").map_or_else(|| "python3".into(), PathBuf::from)
}

fn is_there(world: &World, needs: &Needs) -> bool {
    match needs {
        Needs::Tool(tool) => has(tool),
        Needs::Rings => {
            let injects = Command::new(world.compile("injects")).status();
            has("fio") && injects.is_ok_and(|status| status.success())
        }
        Needs::Module(modules) => {
            let found = Command::new(python()).args(["-c", &format!("import {modules}")]).output();
            let found = found.is_ok_and(|output| output.status.success());
            if !found {
                skip(&format!("Python has no modules {modules}"));
            }
            found
        }
    }
}

#[test]
fn programs_of_a_run_leave_the_files_that_they_leave_on_a_local_disk() {
    let world = World::new();
    for (number, (_, script, after)) in
        RUNS.iter().enumerate().filter(|(_, (needs, ..))| is_there(&world, needs))
    {
        let (target, local) = (world.path(&format!("target{number}")), world.path(&format!("local{number}")));
        let shell = |mut command: Command, dir: &Path, scratch: &str| {
            let scratch = world.path(&format!("{scratch}{number}"));
            std::fs::create_dir(&scratch).expect("a directory");
            command.args(["bash", "-c", &format!("set -e; mkdir $D; {script}")]);
            command.env("D", dir).env("S", &scratch).env("PY", python()).env("HOME", world.path(""));
            command.env("XDG_CACHE_HOME", world.path("cache")).current_dir(world.path(""));
            succeed(command);
        };
        shell(Command::new("env"), &local, "plain");
        let mut run = Command::new("timeout");
        run.args([
            "--signal=KILL",
            "250",
            env!("CARGO_BIN_EXE_forebay"),
            "run",
            "--capacity",
            "256MiB",
            "--pfs",
        ]);
        run.arg(&target).arg("--");
        shell(run, Path::new("/fb/left"), "run");
        for dir in [&local, &target.join("left")] {
            let mut view = Command::new("bash");
            view.args(["-c", &format!("set -e; {after}")]).env("PY", python()).current_dir(dir);
            succeed(view);
        }
        let mut compare = Command::new("diff");
        compare.arg("-r").arg(&local).arg(target.join("left"));
        assert_eq!(succeed(compare), "", "{script}");
    }
}
