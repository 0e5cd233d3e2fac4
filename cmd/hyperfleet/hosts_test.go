// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
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
	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet/hosts"
	"github.com/hyperfleet/hyperfleet/hosts/linux"
	"github.com/hyperfleet/hyperfleet/hosts/mac"
	"github.com/hyperfleet/hyperfleet/hosts/machine"
	linuxplan "github.com/hyperfleet/hyperfleet/hosts/plan/linux"
	"github.com/hyperfleet/hyperfleet/kit/log"
	"github.com/hyperfleet/hyperfleet/test/kube"
)

// fleetHosts are the commands of hosts, and an API server.
type fleetHosts struct{ *kube.Env }

// The commands of hosts share one API server; they keep apart by namespace.
func TestHosts(t *testing.T) {
	t.Parallel()

	h := fleetHosts{kube.Start(t, kube.WithCRDs("../../deploy/crds"), kube.WithScheme(infrav1.AddToScheme))}

	t.Run("diff", h.diff)
	t.Run("diff of macOS", h.diffMacOS)
	t.Run("push", h.push)
	t.Run("push followed", h.pushFollowed)
	t.Run("pause and resume", h.pauseAndResume)
	t.Run("bad input is named", h.badInput)
}

// hostsConfig writes an operator's configuration and gives its path.
func hostsConfig(t *testing.T, agent string) string {
	t.Helper()

	dir := t.TempDir()
	for name, text := range map[string]string{
		"agent": agent, "exporter": "exporter",
		"operator.yaml": "apiVersion: config.hyperfleet.io/v1alpha1\nkind: OperatorConfig\nhosts:\n  linux:\n    vmCIDR: 192.168.122.0/24\n" +
			"    agentFile: " + filepath.Join(dir, "agent") + "\n    nodeExporterFile: " + filepath.Join(dir, "exporter") + "\n" +
			"  mac:\n    maxPods: 2\n    tartKubeletFile: " + filepath.Join(dir, "agent") + "\n    tartFile: " + filepath.Join(dir, "agent") + "\n" +
			"    nodeExporterFile: " + filepath.Join(dir, "exporter") + "\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}

	return filepath.Join(dir, "operator.yaml")
}

func (h fleetHosts) run(t *testing.T, args ...string) (string, error) {
	t.Helper()

	var out strings.Builder

	cmd := hosts.New()
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SetArgs(append(args, "--kubeconfig", h.Kubeconfig(t, h.Config)))

	err := cmd.Execute()

	return out.String(), err
}

func (h fleetHosts) host(t *testing.T, namespace, name string, status infrav1.HostStatus) {
	t.Helper()

	m := &infrav1.LinuxMachine{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
		Spec: infrav1.LinuxMachineSpec{
			FleetName: "racks", Address: "192.0.2.1", SSHKeySecretRef: infrav1.LocalSecretKeySelector{Name: "none", Key: "key"},
			KubeconfigSecretRef: infrav1.LocalSecretKeySelector{Name: "none", Key: "key"},
		},
	}
	if err := h.Client.Create(t.Context(), m); err != nil {
		t.Fatal(err)
	}

	m.Status.HostStatus = status
	if err := h.Client.Status().Update(t.Context(), m); err != nil {
		t.Fatal(err)
	}
}

type foundHost struct {
	Name, Action, Why, Error string
	Changes                  []struct{ Label, What string }
	Lost, Push               []string
}

// What is told is what would be pushed, without a Secret or a host to ask.
func (h fleetHosts) diff(t *testing.T) {
	t.Parallel()

	namespace := h.Namespace(t)
	file := hostsConfig(t, "agent one")

	fleet, err := linux.Load(config.LinuxHosts{
		MaxPods: config.Default().Hosts.Linux.MaxPods, VMCIDR: "192.168.122.0/24",
		AgentFile:        filepath.Join(filepath.Dir(file), "agent"),
		NodeExporterFile: filepath.Join(filepath.Dir(file), "exporter"),
	}, os.ReadFile)
	if err != nil {
		t.Fatal(err)
	}

	parts := func(name string, without ...string) []infrav1.HostPart {
		cfg := fleet
		cfg.NodeName, cfg.Kubeconfig = name, log.NewSecret("x")

		p, err := linuxplan.Render(cfg)
		if err != nil {
			t.Fatal(err)
		}

		var out []infrav1.HostPart

		for _, d := range p.Digests() {
			if !slices.Contains(without, d.Label) {
				out = append(out, infrav1.HostPart{Label: d.Label, SHA256: d.SHA256})
			}
		}

		return out
	}
	hash := linux.New(fleet).Hash()

	h.host(t, namespace, "a-good", infrav1.HostStatus{Bootstrapped: true, HostConfigHash: hash, Parts: parts("a-good")})
	h.host(t, namespace, "b-new", infrav1.HostStatus{})
	h.host(t, namespace, "c-old", infrav1.HostStatus{Bootstrapped: true, HostConfigHash: "old", Parts: parts("c-old", "agent")})
	h.host(t, namespace, "d-lost", infrav1.HostStatus{
		Bootstrapped: true, HostConfigHash: hash, Parts: parts("d-lost"), LostParts: []string{"firewall-rules"},
	})
	h.host(t, namespace, "e-failed", infrav1.HostStatus{
		Bootstrapped: true, FailedHostConfigHash: hash, Parts: parts("e-failed"), FailureReason: "UpdateExceededRetries", FailureMessage: "because",
	})

	text, err := h.run(t, "diff", "--config", file, "-n", namespace, "--output", "json")
	if err != nil {
		t.Fatal(err)
	}

	var all []foundHost
	if err := json.Unmarshal([]byte(text), &all); err != nil || len(all) != 5 {
		t.Fatalf("%v: %s", err, text)
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

	text, err = h.run(t, "diff", "--config", file, "-n", namespace, "c-old")
	if err != nil || !strings.Contains(text, "agent (added), agent-service") || strings.Contains(text, "a-good") {
		t.Errorf("%v: %s", err, text)
	}
}

// A Mac that has the configuration and an older macOS than its fleet asks for is updated, and one
// that refused that update for good is left alone.
func (h fleetHosts) diffMacOS(t *testing.T) {
	t.Parallel()

	namespace := h.Namespace(t)
	file := hostsConfig(t, "agent one")
	dir := filepath.Dir(file)

	cfg, err := mac.Load(config.MacHosts{
		MaxPods: 2, TartKubeletFile: filepath.Join(dir, "agent"), TartFile: filepath.Join(dir, "agent"),
		NodeExporterFile: filepath.Join(dir, "exporter"),
	}, os.ReadFile)
	if err != nil {
		t.Fatal(err)
	}

	h.Create(t, &infrav1.HostFleet{
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
		h.Create(t, m)

		m.Status.HostStatus = status
		m.Status.SSHUser, m.Status.HostCPU, m.Status.HostMemoryMB = "m1", 10, 24<<10

		if err := h.Client.Status().Update(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}

	text, err := h.run(t, "diff", "--config", file, "-n", namespace)
	if err != nil {
		t.Fatal(err)
	}

	// What parts they have is not known here, and told as well.
	for i, want := range []struct {
		action, words string
		updated       bool
	}{
		{"OSUpdate", "macOS 15.6.1 to 15.7", true},
		{"Terminal", "macOS 15.6.1 to 15.7; UpdateExceededRetries: no room", true},
		{"Nothing", "", false},
	} {
		line := strings.Split(text, "\n")[i+1]
		if strings.Fields(line)[4] != want.action || !strings.HasSuffix(line, want.words) || strings.Contains(line, "macOS") != want.updated {
			t.Errorf("%s: want %s, and %s", line, want.action, want.words)
		}
	}
}

// failedHost is one that the operator leaves alone.
func failedHost() infrav1.HostStatus {
	return infrav1.HostStatus{
		Bootstrapped: true, FailureReason: infrav1.FailureUpdateExceededRetries, FailureMessage: "it was tried 5 times", UpdateAttempts: 5,
		ContactAttempts: 2, HostConfigHash: "old", Parts: []infrav1.HostPart{{Label: "agent", SHA256: "a"}},
	}
}

func (h fleetHosts) read(t *testing.T, namespace, name string) *infrav1.LinuxMachine {
	t.Helper()

	out := &infrav1.LinuxMachine{}
	if err := h.Client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, out); err != nil {
		t.Fatal(err)
	}

	return out
}

// racks makes the fleet of the hosts.
func (h fleetHosts) racks(t *testing.T, namespace string) *infrav1.HostFleet {
	t.Helper()

	fleet := &infrav1.HostFleet{
		ObjectMeta: metav1.ObjectMeta{Name: "racks", Namespace: namespace}, Spec: infrav1.HostFleetSpec{HostKind: linux.Name},
	}
	h.Create(t, fleet)

	return fleet
}

// A push clears what keeps the operator from it, and nothing that is known of the host.
func (h fleetHosts) push(t *testing.T) {
	t.Parallel()

	namespace := h.Namespace(t)
	fleet := h.racks(t, namespace)

	for name, args := range map[string][]string{"some": nil, "every": {"--all"}} {
		h.host(t, namespace, name, failedHost())

		out, err := h.run(t, append([]string{"push", name, "-n", namespace, "--no-wait"}, args...)...)
		if err != nil || !strings.Contains(out, "when its turn comes") {
			t.Errorf("%v: %s", err, out)
		}

		want := infrav1.HostStatus{Bootstrapped: true, Parts: failedHost().Parts}
		if args != nil {
			want.Parts = nil
		}

		if diff := cmp.Diff(want, h.read(t, namespace, name).Status.HostStatus); diff != "" {
			t.Errorf("%s -want +got:\n%s", name, diff)
		}
	}

	changed := failedHost()
	changed.FailureReason, changed.FailureMessage = infrav1.FailureHostKeyChanged, "another key"
	h.host(t, namespace, "changed", changed)

	busy := failedHost()
	busy.FailureReason, busy.Push = "", &infrav1.HostPush{Hash: "h", What: "Repair", Started: metav1.Unix(1e9, 0)}
	h.host(t, namespace, "busy", busy)

	for name, says := range map[string]string{
		"changed": "another key: if the host was installed anew, correct spec.sshHostKey",
		"busy":    "Repair runs at the host since 2001-09-09T01:46:40Z",
	} {
		before := h.read(t, namespace, name)
		if out, err := h.run(t, "push", name, "--all", "-n", namespace); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v: %s", err, out)
		}

		if diff := cmp.Diff(before, h.read(t, namespace, name)); diff != "" {
			t.Errorf("%s -before +after:\n%s", name, diff)
		}
	}

	fleet.Spec.Paused = true
	if err := h.Client.Update(t.Context(), fleet); err != nil {
		t.Fatal(err)
	}

	if out, err := h.run(t, "push", "some", "-n", namespace); err == nil || !strings.Contains(err.Error(), "fleet racks is paused") {
		t.Errorf("%v: %s", err, out)
	}
}

// A push is followed to its end, whatever that is, and what it waits for is told.
func (h fleetHosts) pushFollowed(t *testing.T) {
	t.Parallel()

	namespace := h.Namespace(t)
	h.racks(t, namespace)

	for name, end := range map[string]struct {
		// status is what the operator makes of it.
		status infrav1.HostStatus
		says   string
		fails  bool
	}{
		"good":        {infrav1.HostStatus{HostConfigHash: "0123456789abcdef"}, "host good has configuration 0123456789ab", false},
		"refuses":     {infrav1.HostStatus{UpdateAttempts: 1, FailedHostConfigHash: "0123"}, "host refuses refused configuration 0123", true},
		"unreachable": {infrav1.HostStatus{ContactAttempts: 1, ContactReason: "Unreachable", ContactMessage: "no route"}, "Unreachable: no route", true},
		"worn":        {infrav1.HostStatus{FailureReason: "UpdateExceededRetries", FailureMessage: "enough"}, "has failed: UpdateExceededRetries: enough", true},
	} {
		h.host(t, namespace, name, failedHost())

		done := make(chan struct{})

		go func() {
			defer close(done)

			out, err := h.run(t, "push", name, "-n", namespace)
			if err != nil {
				out += err.Error()
			}

			if (err != nil) != end.fails || !strings.Contains(out, end.says) || !strings.Contains(out, "Converged: WaitingForPermit: its turn") {
				t.Errorf("%s: %v: %s", name, err, out)
			}
		}()

		asked := func(context.Context) (bool, error) { return h.read(t, namespace, name).Status.FailureReason == "", nil }
		if err := wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, time.Minute, true, asked); err != nil {
			t.Fatal(err)
		}

		m := h.read(t, namespace, name)
		m.Status.HostStatus = end.status
		m.Status.Conditions = []metav1.Condition{{
			Type: infrav1.ConditionConverged, Status: metav1.ConditionFalse, Reason: "WaitingForPermit", Message: "its turn",
			LastTransitionTime: metav1.Now(),
		}}

		if err := h.Client.Status().Update(t.Context(), m); err != nil {
			t.Fatal(err)
		}

		<-done
	}
}

func (h fleetHosts) pauseAndResume(t *testing.T) {
	t.Parallel()

	namespace := h.Namespace(t)
	fleet := &infrav1.HostFleet{
		ObjectMeta: metav1.ObjectMeta{Name: "racks", Namespace: namespace}, Spec: infrav1.HostFleetSpec{HostKind: linux.Name},
	}

	if err := h.Client.Create(t.Context(), fleet); err != nil {
		t.Fatal(err)
	}

	for _, step := range []struct {
		command         string
		paused, resumed bool
	}{{"pause", true, false}, {"resume", false, true}} {
		out, err := h.run(t, step.command, "racks", "-n", namespace)
		if err != nil || !strings.Contains(out, namespace+"/racks is "+step.command+"d") {
			t.Errorf("%v: %s", err, out)
		}

		if err := h.Client.Get(t.Context(), client.ObjectKeyFromObject(fleet), fleet); err != nil {
			t.Fatal(err)
		}

		if fleet.Spec.Paused != step.paused || (fleet.Spec.ResumedAt != nil) != step.resumed {
			t.Errorf("%s: %+v", step.command, fleet.Spec)
		}
	}
}

func (h fleetHosts) badInput(t *testing.T) {
	t.Parallel()

	file := hostsConfig(t, "agent")

	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"no fleet":         {[]string{"pause"}, "name one fleet"},
		"unknown fleet":    {[]string{"resume", "none", "-n", "default"}, "get fleet none in namespace default"},
		"no host":          {[]string{"push"}, "name one host"},
		"no such host":     {[]string{"push", "none", "-n", "default"}, "there is no host none in namespace default"},
		"unknown output":   {[]string{"diff", "--config", file, "--output", "xml"}, "use table or json"},
		"unknown host":     {[]string{"diff", "--config", file, "-n", "default", "none"}, "there is no host none"},
		"no configuration": {[]string{"diff", "--config", filepath.Join(t.TempDir(), "none")}, "read configuration"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			if out, err := h.run(t, tc.args...); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
}
