// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package hosts_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/sim/scaleway"
	"github.com/hyperfleet/hyperfleet/test/progress"
)

// Two fleets, eight Macs and a Linux host behind OpenSSH, through all that changes in the
// life of a fleet.
func TestFleets(t *testing.T) {
	w := newWorld(t)
	tell := progress.NewPrinter(t)

	first := configuration{kubelet: "1", egress: "10.21.0.0/16"}
	w.firstBoot(first)
	tell("first boot: %d Macs (%d ordered, %d adopted) and a Linux host behind OpenSSH have their configuration",
		macs, macs-adopted, adopted)

	machines := w.machines()

	script := configuration{kubelet: "1", egress: "10.22.0.0/16"}
	tell("script-only change: %s", w.roll(script, "firewall-anchor", "firewall"))
	w.survived(machines)

	binary := configuration{kubelet: "2", egress: "10.22.0.0/16"}
	tell("binary change: %s", w.roll(binary, "tart-kubelet-install", "launchd"))
	w.survived(machines)

	bad := configuration{kubelet: "crashing", egress: "10.22.0.0/16"}
	tell("bad change: %s", w.stopped(bad))

	fixed := configuration{kubelet: "3", egress: "10.22.0.0/16"}
	tell("recovery: %s", w.roll(fixed, "tart-kubelet-install", "launchd"))

	w.probe = "15s" // asking all hosts takes seconds itself
	tell("parts lost by hand: %s", w.lost(fixed))
	w.probe = ""

	tell("operator killed in the middle of a push: %s", w.killed(configuration{kubelet: "4", egress: "10.24.0.0/16"}))

	w.noSecrets()
	tell("no credential in status, events and log")

	if unknown := w.site.unknown(); len(unknown) > 0 {
		t.Errorf("hosts were asked for what they do not know: %v", unknown)
	}

	w.givenBack()
	tell("given back: servers of the pool wiped and with their old names, ordered ones wiped and to be deleted")
}

// firstBoot makes the fleets and waits for them.
func (w *world) firstBoot(to configuration) {
	w.t.Helper()

	w.configure(to)
	w.start()
	w.fleets()
	w.eventually("all hosts have had their first boot", func() bool { return w.converged(to) })

	servers := map[string]bool{}
	for _, mac := range w.macs() {
		servers[mac.Status.ServerID] = true

		if mac.Status.Phase != infrav1.HostReady || mac.Status.SSHHostKey != w.site.host(mac.Status.ServerID).HostKey() ||
			mac.Status.ProviderID != "scw-applesilicon://fr-par-1/"+mac.Status.ServerID || mac.Status.TartKubeletBinarySHA == "" {
			w.t.Errorf("%s: status %+v", mac.Name, mac.Status)
		}
	}

	if len(servers) != macs || len(w.site.cloud.Servers()) != macs {
		w.t.Errorf("%d Macs have %d servers of %d", macs, len(servers), len(w.site.cloud.Servers()))
	}
}

// machines starts a machine on each host, and gives which process each is.
func (w *world) machines() map[string]string {
	w.t.Helper()

	for id, host := range w.site.all() {
		if err := host.StartMachine(w.t.Context(), "vm-of-"+id[:4]); err != nil {
			w.t.Fatal(err)
		}
	}

	return w.running()
}

func (w *world) running() map[string]string {
	out := map[string]string{}

	for id, host := range w.site.all() {
		for name, process := range host.Machines(w.t.Context()) {
			out[id+" "+name] = process
		}
	}

	return out
}

// survived checks that all machines run on as the processes that they were.
func (w *world) survived(before map[string]string) {
	w.t.Helper()

	if diff := cmp.Diff(before, w.running()); diff != "" {
		w.t.Errorf("machines did not survive:\n%s", diff)
	}
}

// roll brings a configuration and waits for all hosts to have it. Nothing but the parts
// concerned is applied to Macs, at no more of them at a time than may be unavailable.
func (w *world) roll(to configuration, parts ...string) string {
	w.t.Helper()
	w.stop()
	w.site.rollout(to)
	w.deploy(to)
	w.eventually("all hosts have "+to.String(), func() bool { return w.converged(to) })

	most, order, labels := w.site.seen()
	if len(order) != macs {
		w.t.Errorf("%d hosts were pushed to, want %d", len(order), macs)
	}

	for _, label := range labels {
		if !slices.Contains(parts, label) {
			w.t.Errorf("%s was applied, which did not change", label)
		}
	}

	return fmt.Sprintf("%s on all hosts, at most %d at a time, parts %s", to, most, strings.Join(labels, ", "))
}

// stopped brings a configuration that no host takes: the canary refuses it, and it goes no
// further.
func (w *world) stopped(to configuration) string {
	w.t.Helper()
	w.stop()
	w.site.rollout(to)
	w.deploy(to)
	w.eventually("the fleets stop", func() bool {
		return w.isStopped("macs") && w.isStopped("racks")
	})
	w.holds(5*time.Second, "it goes to nobody but the canaries", func() bool {
		_, order, _ := w.site.seen()

		return len(order) <= 1
	})

	for id, status := range w.statuses() {
		w.mu.Lock()
		is := w.byHash[status.HostConfigHash]
		w.mu.Unlock()

		if is == to {
			w.t.Errorf("host %s is said to have what it refused", id)
		}
	}

	fleet := w.fleet("macs")
	if fleet.Status.Converged != 0 || fleet.Status.StoppedHash != fleet.Status.HostConfigHash {
		w.t.Errorf("fleet status %+v", fleet.Status)
	}

	return "refused by the canaries, at no other host; " + fleet.Status.StoppedReason
}

func (w *world) isStopped(name string) bool {
	fleet := w.fleet(name)

	return fleet.Status.StoppedHash != "" && apimeta.IsStatusConditionTrue(fleet.Status.Conditions, infrav1.ConditionRolloutStopped)
}

// holds checks that something stays so for a while.
func (w *world) holds(long time.Duration, what string, holds func() bool) {
	w.t.Helper()

	for end := time.Now().Add(long); time.Now().Before(end); time.Sleep(lookAt) {
		w.check()

		if !holds() {
			w.t.Fatalf("not so any more: %s\n%s", what, w.describe())
		}
	}
}

// killed brings a configuration, and kills the operator when some hosts are in the middle
// of it. The next one goes on, with no more hosts at a time.
func (w *world) killed(to configuration) string {
	w.t.Helper()
	w.stop()
	w.site.rollout(to)
	w.deploy(to)

	w.eventually("the canary has it, and pushes to more hosts run", func() bool {
		_, order, _ := w.site.seen()

		return len(order) > 3 && w.site.underWay() > 1
	})

	cut := w.site.underWay()
	w.kill()

	w.check()
	w.start()
	w.eventually("all hosts have "+to.String(), func() bool { return w.converged(to) })

	most, _, _ := w.site.seen()

	return fmt.Sprintf("%d hosts cut off; %s on all hosts, at most %d at a time", cut, to, most)
}

// difference is what of `hosts diff --output json` counts here.
type difference struct {
	Name, Action, Error string
	Changes             []any
	Lost, Push          []string
}

// diff runs the command, and gives what it says of each host.
func (w *world) diff(args ...string) map[string]difference {
	w.t.Helper()

	args = append([]string{
		"hosts", "diff", "--config", w.config, "--kubeconfig", w.kubeconfig, "-n", w.namespace, "--output", "json",
	}, args...)

	cmd := exec.CommandContext(w.t.Context(), binary, args...)

	var said strings.Builder
	cmd.Stderr = &said

	out, err := cmd.Output()
	if err != nil {
		w.t.Fatalf("%v: %v: %s", args, err, said.String())
	}

	var found []difference
	if err := json.Unmarshal(out, &found); err != nil {
		w.t.Fatalf("%v: %v: %s", args, err, out)
	}

	byName := map[string]difference{}
	for _, one := range found {
		byName[one.Name] = one
	}

	return byName
}

// lost has somebody take the firewalls of a Mac and of the Linux host away while no operator
// runs: those who ask are told of just these, and the next operator brings them back.
func (w *world) lost(to configuration) string {
	w.t.Helper()
	w.stop()

	mac, linux := w.macs()[0], w.linux().Name
	away := map[string]string{mac.Name: mac.Status.ServerID, linux: rack}

	for id, command := range map[string]string{
		mac.Status.ServerID: "pfctl -q -f /etc/pf.conf && rm -f /sim/run/pf/com.apple_000.hyperfleet.egress",
		rack:                "nft flush ruleset",
	} {
		if _, err := w.site.host(id).Exec(w.t.Context(), command); err != nil {
			w.t.Fatal(err)
		}
	}

	if unasked := w.diff(linux)[linux]; len(unasked.Lost) > 0 || unasked.Action != "Nothing" {
		w.t.Errorf("without a probe %s is said to be %+v", linux, unasked)
	}

	found := w.diff("--probe")
	if len(found) != macs+1 {
		w.t.Errorf("%d hosts are told of, want %d", len(found), macs+1)
	}

	for name, one := range found {
		_, lost := away[name]
		if one.Error != "" || len(one.Changes) > 0 || lost != slices.Contains(one.Lost, "firewall") || !lost && len(one.Lost) > 0 {
			w.t.Errorf("%s is said to be %+v", name, one)
		}
	}

	w.deploy(to)
	w.eventually("the firewalls are back", func() bool {
		rules, err := w.site.host(rack).Exec(w.t.Context(), "nft list ruleset")

		return err == nil && strings.Contains(rules, "hyperfleet") &&
			w.site.host(mac.Status.ServerID).ReadFile("/sim/run/pf/com.apple_000.hyperfleet.egress") != "" && w.converged(to)
	})

	for name, one := range w.diff("--probe") {
		if len(one.Lost) > 0 || one.Error != "" {
			w.t.Errorf("after the repair %s is said to be %+v", name, one)
		}
	}

	return fmt.Sprintf("hosts diff --probe names the firewalls of %d of %d hosts, and the next operator brings them back", len(away), len(found))
}

// givenBack deletes all hosts.
func (w *world) givenBack() {
	w.t.Helper()

	for _, object := range []client.Object{&infrav1.ScalewayAppleSiliconMachine{}, &infrav1.LinuxMachine{}} {
		if err := env.Client.DeleteAllOf(w.t.Context(), object, client.InNamespace(w.namespace)); err != nil {
			w.t.Fatal(err)
		}
	}

	// What its status says of a host is not on its disk while it is given back.
	w.wait("all hosts are given back", func() bool { return len(w.macs()) == 0 && w.linuxes() == 0 }, func() {})

	if left := w.site.host(rack).ReadFile(credential); left != "" {
		w.t.Error("the Linux host has its credential still")
	}

	var pool []string

	for _, server := range w.site.cloud.Servers() {
		if server.Installs != 2 {
			w.t.Errorf("server %s was not wiped", server.Name)
		}

		if !server.DeletionScheduled {
			pool = append(pool, server.Name)
		}
	}

	slices.Sort(pool)

	want := make([]string, adopted)
	for i := range want {
		want[i] = poolPrefix + strconv.Itoa(i+1)
	}

	if diff := cmp.Diff(want, pool); diff != "" {
		w.t.Errorf("servers that stay (-want +got):\n%s", diff)
	}
}

// noSecrets looks for credentials where anybody may look.
func (w *world) noSecrets() {
	w.t.Helper()

	planted := map[string]string{
		"kubeconfig": kubeToken, "tailnet key": tailnetKey, "API key": scaleway.DefaultSecretKey, "SSH key": strings.Split(w.key, "\n")[2],
	}
	for _, server := range w.site.cloud.Servers() {
		planted["password of "+server.Name] = server.Password
	}

	_, key, made := strings.Cut(w.site.host(rack).ReadFile(credential), "client-key-data: ")
	if planted["key of a Node"], _, _ = strings.Cut(key, "\n"); !made {
		w.t.Error("the Linux host has no certificate of its Node")
	}

	seen := map[string]string{"log": w.logged(), "objects": w.objects()}

	for _, place := range slices.Sorted(maps.Keys(seen)) {
		for name, secret := range planted {
			if strings.Contains(seen[place], secret) {
				w.t.Errorf("the %s has the %s", place, name)
			}
		}
	}
}
