#!/bin/bash
# Runs in a freshly installed, booted Debian: installs, upgrades, removes and purges the package, and installs the tarball as a
# service, with real systemd. /test holds old.deb, new.deb, the tarball, tarball.sh and http.pl. Ends the machine; its exit code is 0 if every line held.
set -eu -o pipefail
exec >/test/log 2>&1
finish() {
  local code=$?
  [ "$code" -eq 0 ] || journalctl --no-pager --unit semel | tail -n 40
  systemctl exit "$code"
}
trap finish EXIT
set -x

fail() { echo "FAILED: $*"; exit 1; }
post() { perl /test/http.pl post "$1" order-42; }
is_active() { [ "$(systemctl is-active semel)" = active ]; }

# Installed, enabled and ready when dpkg returns: the service tells systemd when it is.
dpkg -i /test/old.deb
systemctl is-enabled semel
is_active || fail "not started by its installation"
semel health

# The first minute of a user: name the API, restart.
perl /test/http.pl serve 3000 &
cat >>/etc/semel/semel.toml <<'END'
[gateway]
listen = "127.0.0.1:8080"
upstream = "http://127.0.0.1:3000"
END
semel config check /etc/semel/semel.toml
systemctl restart semel
first=$(post 8080)
[ "$first" = "201 false charge-1" ] || fail "the first request: $first"
[ "$(post 8080)" = "201 true charge-1" ] || fail "a retry is another charge"

# The service runs as nobody in particular, sees nothing of others and writes to its own directory.
pid=$(systemctl show --property MainPID --value semel)
uid=$(awk '/^Uid:/ {print $2}' "/proc/$pid/status")
[ "$uid" -ge 61184 ] || fail "runs as $uid, which is not a dynamic user"
[ "$(stat -c '%a %u' /var/lib/private/semel)" = "700 $uid" ] || fail "$(stat /var/lib/private/semel)"
[ -z "$(find /var/lib/private/semel -type f -perm /077)" ] || fail "others can read its files"
grep -q '^CapBnd:[[:space:]]*0000000000000000$' "/proc/$pid/status"
grep -q '^NoNewPrivs:[[:space:]]*1$' "/proc/$pid/status"
grep -q '^Seccomp:[[:space:]]*2$' "/proc/$pid/status"
# As many open files as the unit says, unless this machine allows systemd itself less.
[ "$(systemctl show --property LimitNOFILE --value semel)" = 65536 ] || fail "$(systemctl show --property LimitNOFILE semel)"
most=$(awk '/^Max open files/ {print $5}' /proc/1/limits)
files=$((most < 65536 ? most : 65536))
grep -q "^Max open files *$files *$files " "/proc/$pid/limits"

# Secrets come from a file that only root can read.
[ "$(stat -c %a /etc/semel/environment)" = 600 ] || fail "others can read the secrets"
echo 'SEMEL_SECRET=a secret of this machine' >>/etc/semel/environment

# A reload keeps the process; a crash is followed by a restart, with the data.
systemctl reload semel
[ "$(systemctl show --property MainPID --value semel)" = "$pid" ] || fail "a reload started another process"
kill -KILL "$pid"
for _ in $(seq 100); do is_active && semel health --live && break; sleep 0.1; done
[ "$(post 8080)" = "201 true charge-1" ] || fail "a crash lost a charge"

# The upgrade: another version, the same configuration and data, no question.
old=$(dpkg-query -W -f '${Version}' semel)
dpkg -i /test/new.deb </dev/null
[ "$(dpkg-query -W -f '${Version}' semel)" != "$old" ] || fail "the upgrade changed nothing"
is_active || fail "not running after the upgrade"
[ "$(systemctl show --property MainPID --value semel)" != "$pid" ] || fail "the old process still runs"
[ "$(post 8080)" = "201 true charge-1" ] || fail "the upgrade lost a charge"
grep -q 127.0.0.1:3000 /etc/semel/semel.toml || fail "the upgrade lost the configuration"

# An administrator's choice to disable it survives an upgrade.
systemctl disable --now semel
dpkg -i /test/old.deb </dev/null
if systemctl is-enabled semel; then fail "an upgrade enabled it"; fi
if is_active; then fail "an upgrade started it"; fi
systemctl enable semel

# Removed: configuration and data stay. Installed again: everything is there.
dpkg -r semel
if is_active; then fail "a removal left it running"; fi
[ -e /etc/semel/semel.toml ] || fail "a removal deleted the configuration"
[ -d /var/lib/private/semel ] || fail "a removal deleted the data"
[ ! -e /usr/bin/semel ] || fail "a removal left the binary"
dpkg -i /test/new.deb </dev/null
[ "$(post 8080)" = "201 true charge-1" ] || fail "a removal lost a charge"

# Purged: nothing is left.
dpkg -P semel
left=$(find / -xdev \( -path /test -o -path /proc -o -path /sys -o -path /var/log -o -path /var/lib/dpkg/info \) -prune -o -name '*semel*' -print)
[ -z "$left" ] || fail "left: $left"
if dpkg-query -W semel; then fail "dpkg still knows it"; fi
if [ -n "$(systemctl list-units --all --no-legend 'semel*')" ]; then systemctl list-units --all 'semel*'; fail "the unit is still loaded"; fi
echo "the package was installed, upgraded, removed and purged"

# From the tarball, by the commands of the documentation.
cd /test
bash -eux tarball.sh
hash -r # the shell remembers the binary of the package
is_active || fail "the tarball's service is not running"
systemctl is-enabled semel
[ "$(stat -c %a /etc/semel/environment)" = 600 ] || fail "others can read the secrets"
semel health
printf '[gateway]\nlisten = "127.0.0.1:8080"\nupstream = "http://127.0.0.1:3000"\n' >>/etc/semel/semel.toml
systemctl restart semel
first=$(post 8080)
[[ $first == "201 false charge-"* ]] || fail "the first request: $first"
[ "$(post 8080)" = "${first/false/true}" ] || fail "a retry is another charge"
[ "$(readlink "/proc/$(systemctl show --property MainPID --value semel)/exe")" = /usr/local/bin/semel ] || fail "another binary runs"
echo "the tarball ran as a service"
