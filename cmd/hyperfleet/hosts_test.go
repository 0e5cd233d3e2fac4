// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	config "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
	infrav1 "github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
	"github.com/hyperfleet/hyperfleet/hosts/linux"
	"github.com/hyperfleet/hyperfleet/hosts/mac"
	"github.com/hyperfleet/hyperfleet/hosts/machine"
	linuxplan "github.com/hyperfleet/hyperfleet/hosts/plan/linux"
	"github.com/hyperfleet/hyperfleet/kit/log"
	"github.com/hyperfleet/hyperfleet/test/must"
)

// writeHostsConfig writes an operator configuration and returns its path.
func writeHostsConfig(t *testing.T, agent string) string {
	t.Helper()

	dir := t.TempDir()
	for name, text := range map[string]string{
		"agent": agent, "exporter": "exporter",
		"operator.yaml": "apiVersion: config.hyperfleet.io/v1alpha1\nkind: OperatorConfig\nhosts:\n  linux:\n    vmCIDR: 192.168.122.0/24\n" +
			"    agentFile: " + filepath.Join(dir, "agent") + "\n    nodeExporterFile: " + filepath.Join(dir, "exporter") + "\n" +
			"  mac:\n    maxPods: 2\n    tartKubeletFile: " + filepath.Join(dir, "agent") + "\n    tartFile: " + filepath.Join(dir, "agent") + "\n" +
			"    nodeExporterFile: " + filepath.Join(dir, "exporter") + "\n",
	} {
		must.Do(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}

	return filepath.Join(dir, "operator.yaml")
}

func createLinuxHost(t *testing.T, namespace, name string, status infrav1.HostStatus) {
	t.Helper()

	m := &infrav1.LinuxMachine{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
		Spec: infrav1.LinuxMachineSpec{
			FleetName: "racks", Address: "192.0.2.1", SSHKeySecretRef: infrav1.LocalSecretKeySelector{Name: "none", Key: "key"},
			KubeconfigSecretRef: infrav1.LocalSecretKeySelector{Name: "none", Key: "key"},
		},
	}
	createWithStatus(t, m, func(m *infrav1.LinuxMachine) { m.Status.HostStatus = status })
}

type foundHost struct {
	Name, Action, Why, Error string
	Changes                  []struct{ Label, What string }
	Lost, Push               []string
}

// TestHostsDiff checks that diff shows what the operator would push, without Secrets and without contacting hosts.
func TestHostsDiff(t *testing.T) {
	t.Parallel()

	namespace := env.Namespace(t)
	file := writeHostsConfig(t, "agent one")

	fleet, err := linux.Load(config.LinuxHosts{
		MaxPods: config.Default().Hosts.Linux.MaxPods, VMCIDR: "192.168.122.0/24",
		AgentFile:        filepath.Join(filepath.Dir(file), "agent"),
		NodeExporterFile: filepath.Join(filepath.Dir(file), "exporter"),
	})
	must.Do(t, err)

	parts := func(name string, without ...string) []infrav1.HostPart {
		cfg := fleet
		cfg.NodeName, cfg.Kubeconfig = name, log.NewSecret("x")

		p, err := linuxplan.Render(cfg)
		must.Do(t, err)

		var out []infrav1.HostPart

		for _, d := range p.Digests() {
			if !slices.Contains(without, d.Label) {
				out = append(out, infrav1.HostPart{Label: d.Label, SHA256: d.SHA256})
			}
		}

		return out
	}
	hash := linux.New(fleet).Hash()

	createLinuxHost(t, namespace, "a-good", infrav1.HostStatus{Bootstrapped: true, HostConfigHash: hash, Parts: parts("a-good")})
	createLinuxHost(t, namespace, "b-new", infrav1.HostStatus{})
	createLinuxHost(t, namespace, "c-old", infrav1.HostStatus{Bootstrapped: true, HostConfigHash: "old", Parts: parts("c-old", "agent")})
	createLinuxHost(t, namespace, "d-lost", infrav1.HostStatus{
		Bootstrapped: true, HostConfigHash: hash, Parts: parts("d-lost"), LostParts: []string{"firewall-rules"},
	})
	createLinuxHost(t, namespace, "e-failed", infrav1.HostStatus{
		Bootstrapped: true, FailedHostConfigHash: hash, Parts: parts("e-failed"), FailureReason: "UpdateExceededRetries", FailureMessage: "because",
	})

	got := execute(t, env.Config, "hosts", "diff", "--config", file, "-n", namespace, "--output", "json")

	var all []foundHost
	if err := json.Unmarshal([]byte(got.out), &all); err != nil || len(all) != 5 {
		t.Fatalf("%v: %+v", err, got)
	}

	for i, want := range []struct {
		action string
		push   []string
	}{
		{"Nothing", []string{}},
		{"FirstBoot", nil},
		{"Update", []string{"agent", "agent-service"}},
		{"Repair", []string{"firewall-rules", "firewall"}},
		{"Terminal", []string{}},
	} {
		got := all[i]
		if got.Action != want.action || got.Error != "" || want.push != nil && !cmp.Equal(got.Push, want.push) {
			t.Errorf("%+v: want %+v", got, want)
		}
	}

	if len(all[1].Push) < 10 || len(all[2].Changes) != 1 || all[4].Why != "UpdateExceededRetries: because" {
		t.Errorf("%+v", all)
	}

	const named = "linuxmachine.infrastructure.hyperfleet.io/"

	got = execute(t, env.Config, "hosts", "diff", "--config", file, "-n", namespace, "-o", "name", named+"c-old")
	if got.err != nil || got.out != named+"c-old\n" {
		t.Errorf("the name is %+v", got)
	}

	execute(t, env.Config, "hosts", "diff", "--config", file, "-n", namespace, "-o", "wide", "c-old").expectSuccess(t, " KIND ", " LinuxMachine ")

	got = execute(t, env.Config, "hosts", "diff", "--config", file, "-n", namespace, "c-old")
	got.expectSuccess(t, "agent (added), agent-service")

	if strings.Contains(got.out, "a-good") {
		t.Errorf("the output names another host:\n%s", got.out)
	}
}

// TestHostsDiffMacOS checks that a Mac with an older macOS than its fleet asks for is updated, and that a Mac on which
// that update has failed terminally is not.
func TestHostsDiffMacOS(t *testing.T) {
	t.Parallel()

	namespace := env.Namespace(t)
	file := writeHostsConfig(t, "agent one")
	dir := filepath.Dir(file)

	cfg, err := mac.Load(config.MacHosts{
		MaxPods: 2, TartKubeletFile: filepath.Join(dir, "agent"), TartFile: filepath.Join(dir, "agent"),
		NodeExporterFile: filepath.Join(dir, "exporter"),
	})
	must.Do(t, err)

	env.Create(t, &infrav1.HostFleet{
		ObjectMeta: metav1.ObjectMeta{Name: "macs", Namespace: namespace},
		Spec: infrav1.HostFleetSpec{
			HostKind: mac.Name, MacOS: &infrav1.HostMacOS{Version: "15.7"},
			Drain: &infrav1.NodeDrain{KubeconfigSecretRef: infrav1.LocalSecretKeySelector{Name: "none", Key: "key"}},
		},
	})

	hash := mac.New(mac.Options{Fleet: cfg}).Hash()
	old := infrav1.HostStatus{Bootstrapped: true, HostConfigHash: hash, OSVersion: "15.6.1"}
	refused := old
	refused.FailureReason, refused.FailureMessage = infrav1.FailureUpdateExceededRetries, "no room"
	refused.FailedHostConfigHash = machine.Desired(hash, &infrav1.HostFleet{
		Spec: infrav1.HostFleetSpec{MacOS: &infrav1.HostMacOS{Version: "15.7"}},
	}).Target()
	newer := old
	newer.OSVersion = "15.7"

	for name, status := range map[string]infrav1.HostStatus{"a-old": old, "b-refused": refused, "c-new": newer} {
		m := &infrav1.ScalewayAppleSiliconMachine{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
			Spec: infrav1.ScalewayAppleSiliconMachineSpec{
				FleetName: "macs", CredentialsSecretRef: infrav1.ScalewaySecretRef{Name: "none"},
				SSHKeySecretRef: infrav1.LocalSecretKeySelector{Name: "none", Key: "key"},
			},
		}
		createWithStatus(t, m, func(m *infrav1.ScalewayAppleSiliconMachine) {
			m.Status.HostStatus = status
			m.Status.SSHUser, m.Status.HostCPU, m.Status.HostMemoryMB = "m1", 10, 24<<10
		})
	}

	got := execute(t, env.Config, "hosts", "diff", "--config", file, "-n", namespace)
	must.Do(t, got.err)

	// The applied parts of these hosts are unknown, so the line also lists parts.
	for i, want := range []struct {
		action, words string
		updated       bool
	}{
		{"OSUpdate", "macOS 15.6.1 to 15.7", true},
		{"Terminal", "macOS 15.6.1 to 15.7; UpdateExceededRetries: no room", true},
		{"Nothing", "", false},
	} {
		line := strings.Split(got.out, "\n")[i+1]
		if strings.Fields(line)[4] != want.action || !strings.HasSuffix(line, want.words) || strings.Contains(line, "macOS") != want.updated {
			t.Errorf("%s: want %s, and %s", line, want.action, want.words)
		}
	}
}

// newFailedStatus returns the status of a host that has failed terminally.
func newFailedStatus() infrav1.HostStatus {
	return infrav1.HostStatus{
		Bootstrapped: true, FailureReason: infrav1.FailureUpdateExceededRetries, FailureMessage: "it was tried 5 times", UpdateAttempts: 5,
		ContactAttempts: 2, HostConfigHash: "old", Parts: []infrav1.HostPart{{Label: "agent", SHA256: "a"}},
	}
}

func readHost(t *testing.T, namespace, name string) *infrav1.LinuxMachine {
	t.Helper()

	out := &infrav1.LinuxMachine{}
	must.Do(t, env.Client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, out))

	return out
}

// createHostFleet creates the fleet of the hosts.
func createHostFleet(t *testing.T, namespace string) *infrav1.HostFleet {
	t.Helper()

	fleet := &infrav1.HostFleet{
		ObjectMeta: metav1.ObjectMeta{Name: "racks", Namespace: namespace}, Spec: infrav1.HostFleetSpec{HostKind: linux.Name},
	}
	env.Create(t, fleet)

	return fleet
}

// TestHostsPush checks that push clears the failures that prevent a push, and keeps the rest of the status.
func TestHostsPush(t *testing.T) {
	t.Parallel()

	namespace := env.Namespace(t)
	fleet := createHostFleet(t, namespace)

	for name, args := range map[string][]string{"some": nil, "every": {"--all"}} {
		createLinuxHost(t, namespace, name, newFailedStatus())

		host := "linuxmachine.infrastructure.hyperfleet.io/" + name // as hosts diff -o name prints it
		execute(t, env.Config, append([]string{"hosts", "push", host, "-n", namespace, "--no-wait"}, args...)...).expectSuccess(t, "the operator pushes when the fleet permits it")

		want := infrav1.HostStatus{Bootstrapped: true, Parts: newFailedStatus().Parts}
		if args != nil {
			want.Parts = nil
		}

		if diff := cmp.Diff(want, readHost(t, namespace, name).Status.HostStatus); diff != "" {
			t.Errorf("%s -want +got:\n%s", name, diff)
		}
	}

	changed := newFailedStatus()
	changed.FailureReason, changed.FailureMessage = infrav1.FailureHostKeyChanged, "another key"
	createLinuxHost(t, namespace, "changed", changed)

	busy := newFailedStatus()
	busy.FailureReason, busy.Push = "", &infrav1.HostPush{Hash: "h", What: "Repair", Started: metav1.Unix(1e9, 0)}
	createLinuxHost(t, namespace, "busy", busy)

	for name, message := range map[string]string{
		"changed": "another key: if the host was reinstalled, correct spec.sshHostKey",
		"busy":    "Repair has been running on the host since 2001-09-09T01:46:40Z",
	} {
		before := readHost(t, namespace, name)
		execute(t, env.Config, "hosts", "push", name, "--all", "-n", namespace).expectFailure(t, cli.ExitFailed, message)

		if diff := cmp.Diff(before, readHost(t, namespace, name)); diff != "" {
			t.Errorf("%s -before +after:\n%s", name, diff)
		}
	}

	fleet.Spec.Paused = true
	must.Do(t, env.Client.Update(t.Context(), fleet))

	execute(t, env.Config, "hosts", "push", "some", "-n", namespace, "--no-wait").expectFailure(t, cli.ExitFailed, "fleet racks is paused")
}

// TestHostsPushFollowed checks that push waits until the push has succeeded or failed, and prints what it waits for.
func TestHostsPushFollowed(t *testing.T) {
	t.Parallel()

	namespace := env.Namespace(t)
	createHostFleet(t, namespace)

	for name, end := range map[string]struct {
		// status is the status that the operator sets at the end of the push.
		status infrav1.HostStatus
		says   string
		fails  bool
	}{
		"good":        {infrav1.HostStatus{HostConfigHash: "0123456789abcdef"}, "host good has configuration 0123456789ab", false},
		"refuses":     {infrav1.HostStatus{UpdateAttempts: 1, FailedHostConfigHash: "0123"}, "update host refuses to configuration 0123 failed", true},
		"unreachable": {infrav1.HostStatus{ContactAttempts: 1, ContactReason: "Unreachable", ContactMessage: "no route"}, "Unreachable: no route", true},
		"worn":        {infrav1.HostStatus{FailureReason: "UpdateExceededRetries", FailureMessage: "enough"}, "has failed: UpdateExceededRetries: enough", true},
	} {
		createLinuxHost(t, namespace, name, newFailedStatus())

		done := make(chan struct{})

		go func() {
			defer close(done)

			got := execute(t, env.Config, "hosts", "push", name, "-n", namespace)
			if (got.err != nil) != end.fails {
				t.Errorf("%s: %v", name, got.err)
			}

			checkContains(t, fmt.Sprint(got.out, got.err), end.says, "Converged: WaitingForPermit: its turn")
		}()

		isFailureCleared := func(context.Context) (bool, error) {
			return readHost(t, namespace, name).Status.FailureReason == "", nil
		}
		must.Do(t, wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, time.Minute, true, isFailureCleared))

		m := readHost(t, namespace, name)
		m.Status.HostStatus = end.status
		m.Status.Conditions = []metav1.Condition{{
			Type: infrav1.ConditionConverged, Status: metav1.ConditionFalse, Reason: "WaitingForPermit", Message: "its turn",
			LastTransitionTime: metav1.Now(),
		}}

		must.Do(t, env.Client.Status().Update(t.Context(), m))

		<-done
	}
}

func TestHostsPauseAndResume(t *testing.T) {
	t.Parallel()

	namespace := env.Namespace(t)
	fleet := createHostFleet(t, namespace)

	for _, step := range []struct {
		command         string
		paused, resumed bool
	}{{"pause", true, false}, {"resume", false, true}} {
		execute(t, env.Config, "hosts", step.command, "racks", "-n", namespace).expectSuccess(t, namespace+"/racks is "+step.command+"d")

		must.Do(t, env.Client.Get(t.Context(), client.ObjectKeyFromObject(fleet), fleet))

		if fleet.Spec.Paused != step.paused || (fleet.Spec.ResumedAt != nil) != step.resumed {
			t.Errorf("%s: %+v", step.command, fleet.Spec)
		}
	}
}

func TestHostsFail(t *testing.T) {
	t.Parallel()

	file := writeHostsConfig(t, "agent")

	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"no fleet":         {[]string{"pause"}, "give the name of one fleet"},
		"unknown fleet":    {[]string{"resume", "none", "-n", "default"}, "get fleet none in namespace default"},
		"no host":          {[]string{"push"}, "give the name of one host"},
		"no such host":     {[]string{"push", "none", "-n", "default"}, "host none not found in namespace default"},
		"not a host":       {[]string{"push", "pod/none", "-n", "default"}, "host pod/none not found in namespace default"},
		"unknown host":     {[]string{"diff", "--config", file, "-n", "default", "none"}, "host none not found"},
		"no configuration": {[]string{"diff", "--config", filepath.Join(t.TempDir(), "none")}, "read configuration"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			execute(t, env.Config, append([]string{"hosts"}, tc.args...)...).expectFailure(t, anyCode, tc.want)
		})
	}
}
