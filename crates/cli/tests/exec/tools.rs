//! Common tools behave as on a local disk.

use crate::world::{World, has, succeed};

const TOOLS: [&str; 11] = [
        "mkdir -p $D/a/b; echo 1 > $D/a/one; ln -s a/one $D/link; ln $D/a/one $D/hard; touch -h -d @1000000000 $D/a/one $D/link
         cp -a $D $D.copy; cd $D.copy; find . | sort; stat -c '%n %a %h %Y %F' a/one link hard; cat link; cd ..; rm -r $D.copy",
        "seq 5000 | shuf --random-source=<(yes) > $D/n; sort -n $D/n > $D/s; cmp $D/s <(seq 5000); sort -R $D/n | sort -n -o $D/s2; cmp $D/s $D/s2",
        "seq 1000 > $D/n; gzip -k $D/n; gunzip -c $D/n.gz | cmp - $D/n; gzip -l $D/n.gz | tail -1 | cut -c1-30",
        "mkdir $D/t; for i in 1 2 3; do seq $i > $D/t/$i; done; chmod 640 $D/t/2; tar -C $D -cf $D/t.tar t; mkdir $D/u; tar -C $D/u -xf $D/t.tar; diff -r $D/t $D/u/t; stat -c %a $D/u/t/2; tar tf $D/t.tar | sort",
        "seq 100 > $D/n; mv $D/n $S/n; mv $S/n $D/m; cmp $D/m <(seq 100); mkdir $D/x; mv $D/m $D/x; ls $D/x; mv $D/x $D/y; ls -d $D/y",
        "mkdir $D/d; touch $D/d/{a,b,c}; rm $D/d/b; ls $D/d; rmdir $D/d 2>/dev/null || echo full; rm -r $D/d; ls $D",
        "seq 1000 > $D/n; grep -c 7 $D/n; sed -i s/7/x/ $D/n; grep -c x $D/n; awk '{s+=$1} END {print s}' $D/n; head -2 $D/n; tail -2 $D/n; wc $D/n | tr -s ' ' | cut -d' ' -f2-4; md5sum < $D/n; cut -c1 $D/n | sort | uniq -c",
        "find $D -name none; mkdir -p $D/p/q/r; touch $D/p/q/r/f; find $D -type f -exec basename {} \\; ; find $D/p -delete; ls $D",
        "for f in a b c; do echo $f > $D/$f; done; echo $D/* | tr ' ' '\\n' | xargs -n1 basename; cat $D/[ab]",
        "echo x > $D/f; chmod 600 $D/f; stat -c %a $D/f; touch -d @5 $D/f; stat -c %Y $D/f; truncate -s 100 $D/f; stat -c %s $D/f; test -s $D/f && test ! -d $D/f && test -r $D/f; readlink -f $D/f | sed s,.*/,,",
        "install -m 444 /etc/passwd $D/i; cmp /etc/passwd $D/i; stat -c %a $D/i; split -l 10 $D/i $D/part.; cat $D/part.* | cmp - /etc/passwd",
];

#[test]
fn tools_of_the_shell() {
    let world = World::new();
    TOOLS.iter().for_each(|script| world.same(script));
}

#[test]
fn tools_of_the_shell_over_three_servers() {
    let world = World::of(3);
    TOOLS.iter().for_each(|script| world.same(script));
}

#[test]
fn dd_in_all_its_forms() {
    let world = World::new();
    let make = "seq 100000 | head -c 300000 > $S/in";
    for form in [
        "bs=64k",
        "bs=1000 count=7 skip=3 seek=2",
        "bs=4k conv=fsync",
        "bs=4k conv=fdatasync",
        "bs=4k conv=notrunc",
        "bs=4k conv=sparse",
        "bs=4k conv=swab",
        "bs=4k conv=ucase",
        "bs=4k conv=lcase",
        "bs=4k conv=noerror,sync",
        "bs=4k conv=ebcdic",
        "bs=4k conv=ibm",
        "bs=4k conv=ascii",
        "cbs=80 bs=4k conv=block",
        "cbs=80 bs=4k conv=unblock",
        "bs=4k conv=excl",
        "bs=4k conv=sync",
        "bs=4k oflag=append conv=notrunc",
        "bs=4k oflag=dsync count=5",
        "bs=4k oflag=sync count=5",
        "bs=4k oflag=direct",
        "bs=4k oflag=nofollow",
        "bs=4k oflag=noatime",
        "bs=4k oflag=nonblock",
        "bs=4k oflag=noctty",
        "bs=4k oflag=nocache",
        "bs=4k oflag=seek_bytes seek=12345",
        "bs=4k iflag=fullblock",
        "bs=4k iflag=direct",
        "bs=4k iflag=sync,dsync",
        "bs=4k iflag=skip_bytes skip=4321",
        "bs=4k iflag=nocache,nonblock,noatime,nofollow",
        "ibs=1000 obs=3000",
        "bs=1M iflag=count_bytes count=1234",
    ] {
        world.same(&format!("{make}; dd status=none if=$S/in of=$D/out {form}; dd status=none if=$D/out of=$S/out {form}; md5sum < $D/out; md5sum < $S/out"));
    }
}

#[test]
fn dd_reports_refused_operations() {
    let world = World::new();
    for form in ["conv=nocreat", "oflag=directory", "iflag=directory", "conv=excl,nocreat"] {
        world.same(&format!("echo x > in; dd status=none if=in of=$D/out {form} 2>&1 || echo $?; ls $D"));
    }
    world.same(
        "echo x > $D/out; dd status=none if=/etc/hostname of=$D/out conv=excl 2>&1 || echo $?; cat $D/out",
    );
}

#[test]
fn git_rsync_and_sqlite() {
    let world = World::new();
    if has("git") {
        world.same(
            "export HOME=$S GIT_CONFIG_NOSYSTEM=1 GIT_AUTHOR_DATE='@1 +0000' GIT_COMMITTER_DATE='@1 +0000'
             git config --global user.name x; git config --global user.email x; git config --global init.defaultBranch m
             git init -q $S/one; cd $S/one; seq 2000 > a; git add a; git commit -qm one
             git clone -q $S/one $D/two; cd $D/two; echo more >> a; git commit -qam two; git gc -q; git fsck; git log --format=%H; git status --short
             git clone -q $D/two $D/three; cd $D/three; wc -l < a",
        );
    }
    if has("rsync") {
        world.same(
            "mkdir -p $S/from/sub; seq 3000 > $S/from/a; seq 10 > $S/from/sub/b; ln -s a $S/from/l; rsync -a $S/from/ $D/to; diff -r $S/from $D/to
             seq 3001 > $S/from/a; rsync -a --delete $S/from/ $D/to; rsync -a $D/to/ $S/back; diff -r $S/from $S/back; ls $S/back",
        );
    }
    if has("sqlite3") {
        world.same(
            "sqlite3 $D/db 'create table t(a,b); insert into t select value, value*2 from generate_series(1,2000); select count(*), sum(b) from t; pragma integrity_check;'
             sqlite3 $D/db 'pragma journal_mode=wal; insert into t values(1,1); select count(*) from t;'; sqlite3 $D/db 'delete from t where a>10; vacuum; select sum(a) from t;'",
        );
    }
}

#[test]
fn fio_verifies_its_data() {
    if !has("fio") {
        return;
    }
    let world = World::new();
    for form in ["--rw=write --bs=256k", "--rw=randwrite --bs=4k", "--rw=randrw --bs=16k", "--rw=rw --bs=64k"]
    {
        let mut fio = world.command("fio");
        fio.args(["--name=job", "--directory=/fb", "--size=8m", "--ioengine=psync", "--verify=crc32c"]);
        fio.args(["--numjobs=2", "--group_reporting", "--minimal"]).args(form.split(' '));
        succeed(fio);
    }
}
