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

// TestFleets runs two fleets, of eight Macs and of a Linux host behind OpenSSH, through their lifecycle:
// first boot, changes, a rejected change, lost parts, a killed operator, and deletion.
func TestFleets(t *testing.T) {
	w := newFixture(t)
	printf := progress.NewPrinter(t)

	first := configuration{kubelet: "1", egress: "10.21.0.0/16"}
	w.bootFleets(first)
	printf("first boot: %d Macs (%d ordered, %d adopted) and a Linux host behind OpenSSH are configured",
		macCount, macCount-adoptedMacCount, adoptedMacCount)

	machines := w.startMachines()

	script := configuration{kubelet: "1", egress: "10.22.0.0/16"}
	printf("script-only change: %s", w.rollOut(script, "firewall-anchor", "firewall"))
	w.requireUnchangedMachines(machines)

	binary := configuration{kubelet: "2", egress: "10.22.0.0/16"}
	printf("binary change: %s", w.rollOut(binary, "tart-kubelet-install", "launchd"))
	w.requireUnchangedMachines(machines)

	bad := configuration{kubelet: "crashing", egress: "10.22.0.0/16"}
	printf("rejected change: %s", w.rollOutRejected(bad))

	fixed := configuration{kubelet: "3", egress: "10.22.0.0/16"}
	printf("recovery: %s", w.rollOut(fixed, "tart-kubelet-install", "launchd"))

	w.probeInterval = "15s" // a probe of all hosts takes seconds itself
	printf("parts lost by hand: %s", w.checkLostParts(fixed))
	w.probeInterval = ""

	printf("operator killed during pushes: %s", w.rollOutWithKilledOperator(configuration{kubelet: "4", egress: "10.24.0.0/16"}))

	w.checkNoSecrets()
	printf("no credential in statuses, events and logs")

	if unknown := w.site.listUnknownCalls(); len(unknown) > 0 {
		t.Errorf("hosts were called with unknown commands: %v", unknown)
	}

	w.deleteHosts()
	printf("deleted: servers of the pool are wiped and have their old names, ordered servers are wiped and scheduled for deletion")
}

// bootFleets creates the fleets and waits until all hosts are configured.
func (w *fixture) bootFleets(to configuration) {
	w.t.Helper()

	w.writeConfig(to)
	w.startOperator()
	w.createFleets()
	w.eventually("all hosts are configured", func() bool { return w.isConverged(to) })

	servers := map[string]bool{}
	for _, mac := range w.listMacs() {
		servers[mac.Status.ServerID] = true

		if mac.Status.Phase != infrav1.HostReady || mac.Status.SSHHostKey != w.site.getHost(mac.Status.ServerID).HostKey() ||
			mac.Status.ProviderID != "scw-applesilicon://fr-par-1/"+mac.Status.ServerID || mac.Status.TartKubeletBinarySHA == "" {
			w.t.Errorf("%s: status %+v", mac.Name, mac.Status)
		}
	}

	if len(servers) != macCount || len(w.site.cloud.Servers()) != macCount {
		w.t.Errorf("%d Macs have %d servers of %d", macCount, len(servers), len(w.site.cloud.Servers()))
	}
}

// startMachines starts a VM on each host, and returns the process of each VM.
func (w *fixture) startMachines() map[string]string {
	w.t.Helper()

	for id, host := range w.site.listHosts() {
		if err := host.StartMachine(w.t.Context(), "vm-of-"+id[:4]); err != nil {
			w.t.Fatal(err)
		}
	}

	return w.listMachines()
}

func (w *fixture) listMachines() map[string]string {
	out := map[string]string{}

	for id, host := range w.site.listHosts() {
		for name, process := range host.Machines(w.t.Context()) {
			out[id+" "+name] = process
		}
	}

	return out
}

// requireUnchangedMachines checks that all VMs still run as the same processes.
func (w *fixture) requireUnchangedMachines(before map[string]string) {
	w.t.Helper()

	if diff := cmp.Diff(before, w.listMachines()); diff != "" {
		w.t.Errorf("VMs were restarted or lost (-before +after):\n%s", diff)
	}
}

// rollOut deploys a configuration and waits until all hosts have it. Only the given parts may be applied to
// Macs, and to no more of them at a time than may be unavailable.
func (w *fixture) rollOut(to configuration, parts ...string) string {
	w.t.Helper()
	w.stopOperator()
	w.site.startRollout(to)
	w.redeployOperator(to)
	w.eventually("all hosts have "+to.String(), func() bool { return w.isConverged(to) })

	most, order, labels := w.site.summarizeRollout()
	if len(order) != macCount {
		w.t.Errorf("parts were applied to %d hosts, want %d", len(order), macCount)
	}

	for _, label := range labels {
		if !slices.Contains(parts, label) {
			w.t.Errorf("%s was applied although it did not change", label)
		}
	}

	return fmt.Sprintf("%s on all hosts, at most %d at a time, parts %s", to, most, strings.Join(labels, ", "))
}

// rollOutRejected deploys a configuration that every host rejects. The rollout must stop at the canary.
func (w *fixture) rollOutRejected(to configuration) string {
	w.t.Helper()
	w.stopOperator()
	w.site.startRollout(to)
	w.redeployOperator(to)
	w.eventually("the rollouts are stopped", func() bool {
		return w.isRolloutStopped("macs") && w.isRolloutStopped("racks")
	})
	w.requireStable(5*time.Second, "only the canaries get the configuration", func() bool {
		_, order, _ := w.site.summarizeRollout()

		return len(order) <= 1
	})

	for id, status := range w.listHostStatuses() {
		w.mu.Lock()
		applied := w.byHash[status.HostConfigHash]
		w.mu.Unlock()

		if applied == to {
			w.t.Errorf("the status of host %s has the configuration that it rejected", id)
		}
	}

	fleet := w.getFleet("macs")
	if fleet.Status.Converged != 0 || fleet.Status.StoppedHash != fleet.Status.HostConfigHash {
		w.t.Errorf("fleet status %+v", fleet.Status)
	}

	return "rejected by the canaries, applied to no other host; " + fleet.Status.StoppedReason
}

func (w *fixture) isRolloutStopped(name string) bool {
	fleet := w.getFleet(name)

	return fleet.Status.StoppedHash != "" && apimeta.IsStatusConditionTrue(fleet.Status.Conditions, infrav1.ConditionRolloutStopped)
}

// requireStable checks that a condition stays true for a while.
func (w *fixture) requireStable(long time.Duration, what string, condition func() bool) {
	w.t.Helper()

	for end := time.Now().Add(long); time.Now().Before(end); time.Sleep(pollInterval) {
		w.checkDisks()

		if !condition() {
			w.t.Fatalf("no longer true: %s\n%s", what, w.describeState())
		}
	}
}

// rollOutWithKilledOperator deploys a configuration, and kills the operator while it pushes to several
// hosts. The next operator must continue, with no more hosts at a time.
func (w *fixture) rollOutWithKilledOperator(to configuration) string {
	w.t.Helper()
	w.stopOperator()
	w.site.startRollout(to)
	w.redeployOperator(to)

	w.eventually("the canary has the configuration, and pushes to other hosts run", func() bool {
		_, order, _ := w.site.summarizeRollout()

		return len(order) > 3 && w.site.countPushing() > 1
	})

	cut := w.site.countPushing()
	w.killOperator()

	w.checkDisks()
	w.startOperator()
	w.eventually("all hosts have "+to.String(), func() bool { return w.isConverged(to) })

	most, _, _ := w.site.summarizeRollout()

	return fmt.Sprintf("%d pushes interrupted; %s on all hosts, at most %d at a time", cut, to, most)
}

// hostDiff has the fields of the output of `hosts diff --output json` that the test checks.
type hostDiff struct {
	Name, Action, Error string
	Changes             []any
	Lost, Push          []string
}

// runHostsDiff runs the command, and returns the differences by host.
func (w *fixture) runHostsDiff(args ...string) map[string]hostDiff {
	w.t.Helper()

	args = append([]string{
		"hosts", "diff", "--config", w.config, "--kubeconfig", w.kubeconfig, "-n", w.namespace, "--output", "json",
	}, args...)

	cmd := exec.CommandContext(w.t.Context(), binary, args...)

	var stderr strings.Builder
	cmd.Stderr = &stderr

	out, err := cmd.Output()
	if err != nil {
		w.t.Fatalf("%v: %v: %s", args, err, stderr.String())
	}

	var found []hostDiff
	if err := json.Unmarshal(out, &found); err != nil {
		w.t.Fatalf("%v: %v: %s", args, err, out)
	}

	byName := map[string]hostDiff{}
	for _, one := range found {
		byName[one.Name] = one
	}

	return byName
}

// checkLostParts removes the firewalls of a Mac and of the Linux host while no operator runs. `hosts diff
// --probe` must report only these, and the next operator must restore them.
func (w *fixture) checkLostParts(to configuration) string {
	w.t.Helper()
	w.stopOperator()

	mac, linux := w.listMacs()[0], w.getLinuxHost().Name
	removed := map[string]string{mac.Name: mac.Status.ServerID, linux: linuxHostID}

	for id, command := range map[string]string{
		mac.Status.ServerID: "pfctl -q -f /etc/pf.conf && rm -f /sim/run/pf/com.apple_000.hyperfleet.egress",
		linuxHostID:         "nft flush ruleset",
	} {
		if _, err := w.site.getHost(id).Exec(w.t.Context(), command); err != nil {
			w.t.Fatal(err)
		}
	}

	if withoutProbe := w.runHostsDiff(linux)[linux]; len(withoutProbe.Lost) > 0 || withoutProbe.Action != "Nothing" {
		w.t.Errorf("hosts diff without --probe reports for %s: %+v", linux, withoutProbe)
	}

	found := w.runHostsDiff("--probe")
	if len(found) != macCount+1 {
		w.t.Errorf("hosts diff reports %d hosts, want %d", len(found), macCount+1)
	}

	for name, one := range found {
		_, lost := removed[name]
		if one.Error != "" || len(one.Changes) > 0 || lost != slices.Contains(one.Lost, "firewall") || !lost && len(one.Lost) > 0 {
			w.t.Errorf("hosts diff --probe reports for %s: %+v", name, one)
		}
	}

	w.redeployOperator(to)
	w.eventually("the firewalls are restored", func() bool {
		rules, err := w.site.getHost(linuxHostID).Exec(w.t.Context(), "nft list ruleset")

		return err == nil && strings.Contains(rules, "hyperfleet") &&
			w.site.getHost(mac.Status.ServerID).ReadFile("/sim/run/pf/com.apple_000.hyperfleet.egress") != "" && w.isConverged(to)
	})

	for name, one := range w.runHostsDiff("--probe") {
		if len(one.Lost) > 0 || one.Error != "" {
			w.t.Errorf("after the repair hosts diff --probe reports for %s: %+v", name, one)
		}
	}

	return fmt.Sprintf("hosts diff --probe reports the lost firewalls of %d of %d hosts, and the next operator restored them", len(removed), len(found))
}

// deleteHosts deletes all hosts, and checks that they are clean and returned.
func (w *fixture) deleteHosts() {
	w.t.Helper()

	for _, object := range []client.Object{&infrav1.ScalewayAppleSiliconMachine{}, &infrav1.LinuxMachine{}} {
		if err := env.Client.DeleteAllOf(w.t.Context(), object, client.InNamespace(w.namespace)); err != nil {
			w.t.Fatal(err)
		}
	}

	// The disk of a host that is being deleted does not match its status.
	w.waitFor("all hosts are deleted", func() bool { return len(w.listMacs()) == 0 && w.countLinuxHosts() == 0 }, func() {})

	if left := w.site.getHost(linuxHostID).ReadFile(credential); left != "" {
		w.t.Error("the Linux host still has its credential")
	}

	var pool []string

	for _, server := range w.site.cloud.Servers() {
		if server.Installs != 2 {
			w.t.Errorf("server %s was not reinstalled", server.Name)
		}

		if !server.DeletionScheduled {
			pool = append(pool, server.Name)
		}
	}

	slices.Sort(pool)

	want := make([]string, adoptedMacCount)
	for i := range want {
		want[i] = poolPrefix + strconv.Itoa(i+1)
	}

	if diff := cmp.Diff(want, pool); diff != "" {
		w.t.Errorf("servers that are kept (-want +got):\n%s", diff)
	}
}

// checkNoSecrets checks that the log and the objects contain no credentials.
func (w *fixture) checkNoSecrets() {
	w.t.Helper()

	secrets := map[string]string{
		"kubeconfig": kubeToken, "tailnet key": tailnetKey, "API key": scaleway.DefaultSecretKey, "SSH key": strings.Split(w.sshKey, "\n")[2],
	}
	for _, server := range w.site.cloud.Servers() {
		secrets["password of "+server.Name] = server.Password
	}

	_, key, found := strings.Cut(w.site.getHost(linuxHostID).ReadFile(credential), "client-key-data: ")
	if secrets["key of a Node"], _, _ = strings.Cut(key, "\n"); !found {
		w.t.Error("the Linux host has no client certificate of its Node")
	}

	texts := map[string]string{"log": w.readLog(), "objects": w.dumpObjects()}

	for _, place := range slices.Sorted(maps.Keys(texts)) {
		for name, secret := range secrets {
			if strings.Contains(texts[place], secret) {
				w.t.Errorf("the %s contains the %s", place, name)
			}
		}
	}
}
