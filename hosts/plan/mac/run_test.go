// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package mac

import (
	"encoding/xml"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hyperfleet/hyperfleet/hosts/plan"
	"github.com/hyperfleet/hyperfleet/hosts/plan/plantest"
)

// pfctl keeps each anchor in a file with the anchor's name, and the main rules in the file main.
const pfctl = `
anchor=main file= show= dry=
while [ $# -gt 0 ]; do
	case $1 in
	-a) anchor=${2//\//_}; shift ;;
	-f) file=$2; shift ;;
	-s) show=$2; shift ;;
	-n) dry=yes ;;
	-E) touch "$HOST/enabled" ;;
	-q) ;;
	*) echo "pfctl: unknown $1"; exit 64 ;;
	esac
	shift
done
if [ -n "$file" ]; then
	if grep -q REFUSED "$file"; then exit 1; fi
	[ -z "$dry" ] || exit 0
	if [ "$anchor" = main ]; then echo 'anchor "com.apple/*" all' >"$HOST/main"; fi
	[ "$anchor" = main ] || cp "$file" "$HOST/$anchor"
fi
case $show in
info) if [ -e "$HOST/enabled" ]; then echo "Status: Enabled for 0 days"; else echo "Status: Disabled"; fi ;;
rules | nat) [ ! -e "$HOST/$anchor" ] || cat "$HOST/$anchor" ;;
esac`

const stockPF = "scrub-anchor \"com.apple/*\"\nanchor \"com.apple/*\"\n# custom rules\nblock in proto tcp to port 23\n"

// firewall returns a host and the firewall script with the host's files.
func firewall(t *testing.T) (plantest.Host, string) {
	t.Helper()

	host := plantest.NewHost(t, map[string]string{"pfctl": pfctl})
	vars := []plan.Var{
		{Name: "ANCHOR", Value: egressAnchor},
		{Name: "RULES", Value: host.Path("rules")},
		{Name: "CONF", Value: host.Path("pf.conf")},
	}

	text, err := renderAnchor(one())
	if err != nil {
		t.Fatal(err)
	}

	host.Write("rules", text)
	host.Write("pf.conf", stockPF)
	host.AddProgram("loader", plan.Render(readScript("pf"), vars...))

	return host, plan.Render(readScript("firewall"), append(vars, plan.Var{Name: "LOADER", Value: "loader"})...)
}

func TestFirewallLoadsOnlyItsAnchor(t *testing.T) {
	t.Parallel()

	host, script := firewall(t)
	host.Must(script)

	first := host.Read("pf.conf")
	if !strings.HasPrefix(first, stockPF) || strings.Count(first, "# BEGIN hyperfleet\n") != 1 || host.Read("main") == "" {
		t.Errorf("pf.conf:\n%s", first)
	}

	host.Calls()
	host.Must(script)

	if again := host.Read("pf.conf"); again != first {
		t.Errorf("the second run changed pf.conf:\n%s", again)
	}

	// With -n, pfctl only parses the rules.
	loads := slices.DeleteFunc(host.Calls(), func(call string) bool {
		return !strings.Contains(call, " -f ") || strings.Contains(call, " -n ")
	})
	if diff := cmp.Diff([]string{"pfctl -q -a " + egressAnchor + " -f " + host.Path("rules")}, loads); diff != "" {
		t.Errorf("loaded more than the anchor, which would interrupt the network of VMs: %s", diff)
	}

	host.Write("pf.conf", first+"# after us\n")
	host.Must(script)

	if got := host.Read("pf.conf"); !strings.HasPrefix(got, stockPF+"# after us\n# BEGIN") {
		t.Errorf("lines below our block were not kept:\n%s", got)
	}
}

func TestFirewallFailsClosed(t *testing.T) {
	t.Parallel()

	cases := map[string]struct {
		prepare  func(plantest.Host)
		wantText string
	}{
		"rules that pf rejects":       {func(h plantest.Host) { h.Write("rules", "REFUSED") }, "nothing was changed"},
		"pf.conf that pf rejects":     {func(h plantest.Host) { h.Write("pf.conf", "REFUSED\n") }, "nothing was changed"},
		"half a block":                {func(h plantest.Host) { h.Write("pf.conf", stockPF+"# BEGIN hyperfleet\n") }, "fix it by hand"},
		"rules that skip the anchors": {func(h plantest.Host) { h.Write("main", "pass all\n") }, "do not evaluate the anchors"},
		"an empty anchor":             {func(h plantest.Host) { h.Write("rules", "") }, "machines would reach everything"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			host, script := firewall(t)
			tc.prepare(host)

			before := host.Read("pf.conf")
			host.Refuses(script, tc.wantText)

			if strings.Contains(tc.wantText, "nothing") && host.Read("pf.conf") != before {
				t.Errorf("pf.conf was changed:\n%s", host.Read("pf.conf"))
			}

			for _, left := range host.Left(".") {
				if strings.HasPrefix(left, "pf.conf.") {
					t.Errorf("temporary file %s still exists", left)
				}
			}
		})
	}
}

// launchctl has one job, whose PID is in the file pid. If the job crashes, each print shows another
// PID.
const launchctl = `
next() { echo $(($(cat "$HOST/pid") + 1)) >"$HOST/pid"; }
case $1 in
print)
	[ -e "$HOST/loaded" ] || exit 113
	if [ -e "$HOST/crashes" ]; then next; fi
	printf 'system/job = {\n\tstate = running\n\tpid = %s\n}\n' "$(cat "$HOST/pid")" ;;
bootstrap) touch "$HOST/loaded"; next ;;
bootout) rm "$HOST/loaded" ;;
kickstart) [ -e "$HOST/stuck" ] || next ;;
enable) ;;
*) exit 64 ;;
esac`

func TestLaunchdRequiresANewStableProcess(t *testing.T) {
	t.Parallel()

	host := plantest.NewHost(t, map[string]string{"launchctl": launchctl})
	host.Write("pid", "100\n")
	host.Write("plist", "one")

	script := plan.Render(readScript("job"),
		plan.Var{Name: "JOB", Value: "job"}, plan.Var{Name: "PLIST", Value: host.Path("plist")},
		plan.Var{Name: "STAMP", Value: host.Path("state/job.plist")}, plan.Var{Name: "LOGIN"}, plan.Var{Name: "STABLE", Value: "15"})

	did := func() string {
		var verbs []string

		for _, call := range host.Calls() {
			if verb := strings.Fields(call)[1]; verb != "print" {
				verbs = append(verbs, verb)
			}
		}

		return strings.Join(verbs, " ")
	}

	for _, step := range []struct{ name, change, did, refuses string }{
		{name: "a new job", did: "enable bootstrap"},
		{name: "the same job is restarted", did: "kickstart"},
		{name: "a changed job is reloaded", change: "echo two >$HOST/plist", did: "bootout enable bootstrap"},
		{name: "a job that does not restart", change: "touch $HOST/stuck", did: "kickstart", refuses: "did not restart job"},
		{name: "a job that crashes", change: "rm $HOST/stuck; touch $HOST/crashes", did: "kickstart", refuses: "did not run for 15 s"},
		{name: "a job that recovered", change: "rm $HOST/crashes", did: "kickstart"},
	} {
		host.Must(step.change + "\n")

		if step.refuses != "" {
			host.Refuses(script, step.refuses)
		} else {
			host.Must(script)
		}

		if got := did(); got != step.did {
			t.Errorf("%s: launchctl ran %q, want %q", step.name, got, step.did)
		}
	}
}

// slowLaunchctl has a loaded job that ends a while after bootout has given up waiting. As long as the job ends, and
// once after that, launchd cannot load it.
const slowLaunchctl = `
case $1 in
print)
	[ -e "$HOST/loaded" ] || exit 113
	if [ -e "$HOST/ending" ]; then
		echo x >>"$HOST/ending"
		[ "$(wc -l <"$HOST/ending")" -le 3 ] || rm "$HOST/loaded"
	fi
	echo '	pid = 100' ;;
bootout)
	if [ -e "$HOST/vanishes" ]; then rm "$HOST/loaded"; echo "Boot-out failed: 3: No such process" >&2; exit 3; fi
	touch "$HOST/ending"; echo "Boot-out failed: 36: Operation now in progress" >&2; exit 36 ;;
bootstrap)
	if [ -e "$HOST/loaded" ] || [ ! -e "$HOST/tried" ]; then
		touch "$HOST/tried"; echo "Bootstrap failed: 5: Input/output error" >&2; exit 5
	fi ;;
enable) ;;
*) exit 64 ;;
esac`

// launchctl gives up on a job that takes longer to end, and launchd refuses to load a job at once after it has ended.
func TestLaunchdWaitsForTheEndOfAJob(t *testing.T) {
	t.Parallel()

	for name, vars := range map[string][]plan.Var{
		"job":     {{Name: "LOGIN"}, {Name: "STABLE", Value: "0"}},
		"job-off": nil,
	} {
		for _, how := range []string{"ends", "vanishes", "stays"} {
			host := plantest.NewHost(t, map[string]string{"launchctl": slowLaunchctl})
			host.Write("plist", "one")
			host.Write("loaded", "")
			host.Write(how, "")

			if how == "stays" {
				host.AddProgram("rm", "case $* in *loaded) exit 0 ;; esac; exec /bin/rm \"$@\"")
			}

			script := plan.Render(readScript(name), append(vars, plan.Var{Name: "JOB", Value: "job"},
				plan.Var{Name: "PLIST", Value: host.Path("plist")}, plan.Var{Name: "STAMP", Value: host.Path("state/job.plist")})...)

			if how == "stays" {
				host.Refuses(script, "did not stop job within a minute")

				continue
			}

			host.Must(script)

			if tried := strings.Count(strings.Join(host.Calls(), "\n"), "launchctl bootstrap"); (name == "job") != (tried == 2) {
				t.Errorf("%s of a job that %s: %d attempts to load it", name, how, tried)
			}
		}
	}
}

// networksetup has at most one VLAN, in the file vlan.
const networksetup = `
case $1 in
-listVLANs)
	printf 'VLAN User Defined Name: office\nParent Device: en1\nDevice ("Hardware" Port): vlan7\nTag: 7\n\n'
	if [ -e "$HOST/vlan" ]; then
		read -r name parent tag <"$HOST/vlan"
		printf 'VLAN User Defined Name: %s\nParent Device: %s\nDevice ("Hardware" Port): vlan0\nTag: %s\n' "$name" "$parent" "$tag"
	fi ;;
-createVLAN) echo "$2 $3 $4" >"$HOST/vlan" ;;
-deleteVLAN) [ "$2 $3 $4" = "$(cat "$HOST/vlan")" ] && rm "$HOST/vlan" ;;
*) exit 64 ;;
esac`

func TestInterfaceFollowsItsTag(t *testing.T) {
	t.Parallel()

	host := plantest.NewHost(t, map[string]string{
		"networksetup": networksetup,
		"ipconfig":     `[ "$1 $2" = "getifaddr vlan0" ] && [ ! -e "$HOST/nodhcp" ] && echo 172.16.16.3`,
	})
	script := func(tag string) string {
		return plan.Render(readScript("interface"), plan.Var{Name: "SERVICE", Value: networkService},
			plan.Var{Name: "PARENT", Value: ethernetDevice}, plan.Var{Name: "VLAN", Value: tag})
	}

	for _, step := range []struct{ name, tag, vlan string }{
		{"created", "1597", "hyperfleet-pn en0 1597\n"},
		{"left alone", "1597", "hyperfleet-pn en0 1597\n"},
		{"another tag", "20", "hyperfleet-pn en0 20\n"},
		{"gone", "", ""},
		{"still deleted", "", ""},
	} {
		host.Calls()
		host.Must(script(step.tag))

		if got := host.Read("vlan"); got != step.vlan {
			t.Errorf("%s: %q, want %q", step.name, got, step.vlan)
		}

		changes := strings.Count(strings.Join(host.Calls(), "\n"), "teVLAN")
		if quiet := strings.Contains(step.name, "left") || strings.Contains(step.name, "still"); quiet != (changes == 0) {
			t.Errorf("%s: %d changes", step.name, changes)
		}
	}

	host.Write("nodhcp", "")
	host.Refuses(script("1597"), "has no address after a minute")
}

func TestVMNATReloadsRules(t *testing.T) {
	t.Parallel()

	host := plantest.NewHost(t, map[string]string{
		"pfctl": pfctl, "networksetup": networksetup, "sysctl": "",
		"ifconfig": `printf 'en0: flags=8863<UP> mtu 1500\n\tinet 51.159.0.1 netmask 0xffffff00\nutun2: flags=8051<UP>\n\tinet6 fe80::1\nutun3: flags=8051<UP>\n\tinet 100.101.1.2 --> 100.101.1.2 netmask 0xffffffff\n'`,
		"route":    `[ ! -e "$HOST/noroute" ] && printf '   route to: default\n  interface: en0\n'`,
	})
	script := plan.Render(readScript("vmnat"),
		plan.Var{Name: "ANCHOR", Value: "nat"}, plan.Var{Name: "RULES", Value: host.Path("state/nat.rules")},
		plan.Var{Name: "SERVICE", Value: networkService}, plan.Var{Name: "VMS", Value: vmNetwork})
	loads := func() int {
		host.Calls()
		host.Must(script)

		return strings.Count(strings.Join(host.Calls(), "\n"), " -f ")
	}

	if n := loads(); n != 1 {
		t.Errorf("first run: rules loaded %d times", n)
	}

	want := "nat on utun3 inet from 192.168.64.0/24 to ! 192.168.64.0/24 -> (utun3)\n" +
		"nat on en0 inet from 192.168.64.0/24 to ! 192.168.64.0/24 -> (en0)\n"
	if diff := cmp.Diff(want, host.Read("nat")); diff != "" {
		t.Error(diff)
	}

	if n := loads(); n != 0 {
		t.Errorf("no change: rules loaded %d times", n)
	}

	host.Must("rm $HOST/nat\n")

	if n := loads(); n != 1 || host.Read("nat") != want {
		t.Errorf("flushed anchor: rules loaded %d times", n)
	}

	host.Write("vlan", "hyperfleet-pn en0 1597\n")

	if n := loads(); n != 1 || !strings.Contains(host.Read("nat"), "nat on vlan0 ") {
		t.Errorf("new network: rules loaded %d times:\n%s", n, host.Read("nat"))
	}

	host.Must("rm $HOST/vlan; touch $HOST/noroute\n")

	if n := loads(); n != 1 || strings.Contains(host.Read("nat"), "en0") {
		t.Errorf("no default route: rules loaded %d times:\n%s", n, host.Read("nat"))
	}
}

func TestKubeletIsSignedAndProbed(t *testing.T) {
	t.Parallel()

	host := plantest.NewHost(t, map[string]string{"codesign": `printf signature >>"${@: -1}"`})
	local := strings.NewReplacer(kubeletPath, host.Path("bin/tart-kubelet"), stateDir, host.Path("state")+"/")
	part := newKubeletInstall(one())
	input := local.Replace(part.Input())
	probe := "set -euo pipefail\n" + local.Replace(part.Probe) + "\n"

	host.Must(input)
	host.Must(probe)

	if got := host.Read("bin/tart-kubelet"); got != "kubelet onesignature" {
		t.Errorf("installed %q", got)
	}

	if _, err := host.Run("echo x >>$HOST/bin/tart-kubelet\n" + probe); err == nil {
		t.Error("the probe does not detect a changed program")
	}

	host.Refuses(input[:len(input)-1], "push it again")
}

// A plist is valid XML and contains its arguments unchanged.
func TestPlistIsXML(t *testing.T) {
	t.Parallel()

	argument := "--labels=<a>&\"b\"'c'</string>"
	decoder := xml.NewDecoder(strings.NewReader(job{name: "job", arguments: []string{argument}, keepAlive: true, interval: 60}.renderPlist()))
	found := false

	for {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			break
		}

		if err != nil {
			t.Fatal(err)
		}

		text, ok := token.(xml.CharData)
		found = found || ok && string(text) == argument
	}

	if !found {
		t.Error("the argument is not in the plist")
	}
}

// defaults keeps each value of a domain in a file.
const defaults = `
file=$HOST/${2##*/}.$3
case "$1 $#" in
"read 3") cat "$file" ;;
"write 5") [ "$4" = -bool ] && case $5 in false) echo 0 ;; true) echo 1 ;; *) exit 64 ;; esac >"$file" ;;
*) exit 64 ;;
esac`

// macOS installs no update by itself, because it would restart the host while jobs run. If somebody allows it, the part
// counts as lost, and is pushed again.
func TestMacOSInstallsNoUpdates(t *testing.T) {
	t.Parallel()

	host := plantest.NewHost(t, map[string]string{"defaults": defaults})
	draft := &plan.Draft{}
	renderUpdates(draft, one())

	p, err := draft.Plan()
	if err != nil {
		t.Fatal(err)
	}

	lost := func() []string {
		t.Helper()

		out, err := host.Run(p.ProbeScript())
		if err != nil {
			t.Fatal(err)
		}

		states, err := p.ParseProbe(strings.NewReader(out))
		if err != nil {
			t.Fatal(err)
		}

		return p.LostParts(states)
	}

	want := []string{"software-updates"}
	if diff := cmp.Diff(want, lost()); diff != "" {
		t.Errorf("a new Mac: %s", diff)
	}

	host.Must(p.Parts()[0].Input())

	if got := lost(); len(got) != 0 {
		t.Errorf("after the push: %v", got)
	}

	host.Write("com.apple.SoftwareUpdate.AutomaticallyInstallMacOSUpdates", "1\n")

	if diff := cmp.Diff(want, lost()); diff != "" {
		t.Errorf("after updates were allowed: %s", diff)
	}
}

// launchd sets no HOME for a job of the system session, and programs such as tart end without it.
func TestJobsHaveAHome(t *testing.T) {
	t.Parallel()

	for user, home := range map[string]string{"": "/var/root", "m1": "/Users/m1"} {
		if plist := (job{name: "job", user: user}).renderPlist(); !strings.Contains(plist, "<key>HOME</key>\n\t\t<string>"+home+"</string>") {
			t.Errorf("the job of user %q has no HOME %s:\n%s", user, home, plist)
		}
	}
}
