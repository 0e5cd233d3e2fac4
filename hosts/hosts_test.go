// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package hosts_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	infrav1 "github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hosts/linux"
	"github.com/hyperfleet/hyperfleet/hosts/mac"
	"github.com/hyperfleet/hyperfleet/hosts/plan"
	linuxplan "github.com/hyperfleet/hyperfleet/hosts/plan/linux"
	"github.com/hyperfleet/hyperfleet/kit/log"
	"github.com/hyperfleet/hyperfleet/kit/property"
	"github.com/hyperfleet/hyperfleet/sim/machost"
)

// planConfig returns the configuration that all hosts share.
func (w *fixture) planConfig() linuxplan.Config {
	w.t.Helper()

	out, err := linux.Load(w.cfg.Linux)
	w.must(err)

	return out
}

// renderPlan returns the plan of one host.
func (w *fixture) renderPlan(name string) plan.Plan {
	w.t.Helper()

	cfg := w.planConfig()
	cfg.NodeName, cfg.Kubeconfig = name, log.NewSecret(kubeconfig)

	out, err := linuxplan.Render(cfg)
	w.must(err)

	return out
}

func rollout(most int) infrav1.HostRollout {
	return infrav1.HostRollout{MaxUnavailable: new(intstr.FromInt(most)), Canary: new(int32(1)), FailureThreshold: 1}
}

// New hosts are bootstrapped. Then another configuration is rolled out: first to a canary, never to
// more hosts at a time than allowed, and only the changed parts.
func TestFleetRollsOutConfiguration(t *testing.T) {
	t.Parallel()

	const n = 6

	w := newFixture(t, n, rollout(2))
	w.startOperator()
	first := w.waitUntilConverged(n)

	for name, host := range w.hosts {
		m, p := w.getHost(name), w.renderPlan(name)

		var labels []string
		for _, part := range p.Parts() {
			labels = append(labels, part.Label)
		}

		if diff := cmp.Diff(labels, w.scriptLabels(name)); diff != "" {
			t.Errorf("%s: want all parts once, in order: %s", name, diff)
		}

		if m.Status.SSHHostKey != host.HostKey() || m.Status.Phase != infrav1.HostReady || !m.Status.Bootstrapped {
			t.Errorf("%s: %+v", name, m.Status)
		}

		if diff := cmp.Diff(p.Digests(), partsOf(m)); diff != "" {
			t.Errorf("%s: status and plan differ: %s", name, diff)
		}
	}

	w.resetMaxBusy()
	before := map[string]int{}

	for name := range w.hosts {
		before[name] = len(w.scriptLabels(name))
	}

	w.restart("agent two")

	if second := w.waitUntilConverged(n); second == first {
		t.Error("another agent has the same hash")
	}

	if most := w.maxBusyHosts(); most > 2 || most < 1 {
		t.Errorf("pushes to %d hosts at a time, want at most 2", most)
	}

	for name := range w.hosts {
		if diff := cmp.Diff([]string{"agent", "agent-service"}, w.scriptLabels(name)[before[name]:]); diff != "" {
			t.Errorf("%s: want only the changed parts: %s", name, diff)
		}
	}

	w.eventually("events", func() string {
		if got := w.eventReasons("rack-00"); !slices.Contains(got, "AgentRolled") {
			return fmt.Sprint(got)
		}

		return ""
	})
}

func partsOf(m *infrav1.LinuxMachine) []plan.Digest {
	var out []plan.Digest
	for _, part := range m.Status.Parts {
		out = append(out, plan.Digest{Label: part.Label, SHA256: part.SHA256})
	}

	return out
}

// A bad configuration reaches only the canary. The next configuration fixes all hosts.
func TestBadConfigurationStopsAtTheCanary(t *testing.T) {
	t.Parallel()

	const n = 4

	w := newFixture(t, n, rollout(3))
	w.startOperator()
	good := w.waitUntilConverged(n)

	for _, host := range w.hosts {
		host.Inject(machost.Fault{Label: "agent", Kind: machost.Fail})
	}

	w.restart("agent bad")

	var stopped *infrav1.HostFleet

	w.eventually("stop", func() string {
		if stopped = w.getFleet(); stopped.Status.StoppedHash == "" || len(stopped.Status.Permits) > 0 {
			return fmt.Sprintf("%+v", stopped.Status)
		}

		return ""
	})

	if !meta.IsStatusConditionTrue(stopped.Status.Conditions, infrav1.ConditionRolloutStopped) {
		t.Errorf("%+v", stopped.Status.Conditions)
	}

	var canary string

	for _, m := range w.listHosts() {
		switch {
		case m.Status.FailedHostConfigHash == "":
			if m.Status.HostConfigHash != good {
				t.Errorf("%s was changed: %+v", m.Name, m.Status)
			}
		case canary != "":
			t.Errorf("both %s and %s failed, want only the canary", canary, m.Name)
		default:
			canary = m.Name

			if m.Status.UpdateAttempts != 1 || m.Status.HostConfigHash != "" || slices.ContainsFunc(partsOf(&m), isAgent) {
				t.Errorf("canary: %+v", m.Status)
			}
		}
	}

	w.eventually("event", func() string {
		if got := append(w.eventReasons(canary), w.eventReasons(fleetName)...); !slices.Contains(got, "AgentRollFailed") || !slices.Contains(got, "RolloutStopped") {
			return fmt.Sprint(got)
		}

		return ""
	})

	for _, host := range w.hosts {
		host.ClearFaults()
	}

	w.restart("agent fixed")
	w.waitUntilConverged(n)

	if m := w.getHost(canary); m.Status.FailedHostConfigHash != "" || m.Status.UpdateAttempts != 0 {
		t.Errorf("the converged host still has a failure: %+v", m.Status)
	}
}

func isAgent(d plan.Digest) bool { return d.Label == "agent" }

// A host that refuses a configuration too often fails terminally until the configuration changes.
func TestTerminalFailureEndsWithNewConfiguration(t *testing.T) {
	t.Parallel()

	r := rollout(1)
	r.FailureThreshold = 10
	w := newFixture(t, 1, r)
	w.startOperator()
	w.waitUntilConverged(1)
	w.hosts["rack-00"].Inject(machost.Fault{Label: "agent", Kind: machost.Fail})
	w.restart("agent bad")

	w.waitWhile("rack-00", "fail", func(m *infrav1.LinuxMachine) bool {
		return m.Status.FailureReason != infrav1.FailureUpdateExceededRetries || m.Status.Phase != infrav1.HostFailed || m.Status.Ready
	})

	if m := w.getHost("rack-00"); int(m.Status.UpdateAttempts) != w.cfg.MaxUpdateAttempts || !strings.Contains(m.Status.FailureMessage, "agent") {
		t.Errorf("%+v", m.Status)
	}

	// Without a change nothing happens, and the phase stays Failed.
	runs := len(w.scriptLabels("rack-00"))
	w.patchFleet(func(s *infrav1.HostFleetSpec) { s.ResumedAt = new(metav1.Now()) })
	w.patchStatus("rack-00", func(s *infrav1.LinuxMachineStatus) { s.Phase = infrav1.HostReady })
	w.eventually("stay failed", func() string {
		return strings.TrimPrefix(string(w.getHost("rack-00").Status.Phase), string(infrav1.HostFailed))
	})

	if after := len(w.scriptLabels("rack-00")); after != runs {
		t.Errorf("%d scripts ran on a failed host", after-runs)
	}

	w.hosts["rack-00"].ClearFaults()
	w.restart("agent well")
	w.waitUntilConverged(1)
}

// If an operator is killed during a push, the permit stays recorded. The next operator continues
// with the same host, and pushes to no more hosts at a time than allowed.
func TestOperatorKilledDuringPush(t *testing.T) {
	t.Parallel()

	const n = 4

	w := newFixture(t, n, rollout(1))
	w.startOperator()
	w.waitUntilConverged(n)
	w.resetMaxBusy()

	goOn := w.blockScripts("agent")

	w.restart("agent two")

	var held infrav1.LinuxMachine

	w.eventually("hang", func() string {
		for _, m := range w.listHosts() {
			if m.Status.Push != nil && w.maxBusyHosts() > 0 {
				held = m

				return ""
			}
		}

		return "no push is in progress"
	})

	permits := w.getFleet().Status.Permits
	if len(permits) != 1 || permits[0].Host != held.Name || held.Status.Push.Permit != permits[0].Number || held.Status.HostConfigHash != "" {
		t.Errorf("permits %+v, push %+v", permits, held.Status.Push)
	}

	w.stop()
	goOn()
	w.restart("agent two")
	w.waitUntilConverged(n)

	if most := w.maxBusyHosts(); most > 1 {
		t.Errorf("pushes to %d hosts at a time", most)
	}

	if m := w.getHost(held.Name); m.Status.LastPermit != permits[0].Number {
		t.Errorf("%s continued with permit %d, want %d", m.Name, m.Status.LastPermit, permits[0].Number)
	}
}

// A host whose status shows nothing to push is still probed before it counts as converged, because
// an earlier push may have been interrupted before its probe.
func TestHostWithNothingToPushIsProbed(t *testing.T) {
	t.Parallel()

	w := newFixture(t, 1, rollout(1))
	w.startOperator()
	w.waitUntilConverged(1)

	before := len(w.scriptLabels("rack-00"))
	w.hosts["rack-00"].DropScript("agent")
	w.patchStatus("rack-00", func(s *infrav1.LinuxMachineStatus) { s.HostConfigHash = "" })
	w.eventually("repair", func() string {
		if runs := w.scriptLabels("rack-00")[before:]; !slices.Equal(runs, []string{"agent", "agent-service"}) {
			return fmt.Sprint(runs)
		}

		return ""
	})
	w.waitUntilConverged(1)
}

// A probe finds what a host has lost, and only that is repaired.
func TestLostPartsAreRepaired(t *testing.T) {
	t.Parallel()

	w := newFixture(t, 2, rollout(1))
	w.cfg.ProbeInterval = 300 * time.Millisecond
	w.startOperator()
	w.waitUntilConverged(2)

	before := len(w.scriptLabels("rack-01"))
	w.hosts["rack-01"].DropScript("firewall-rules")
	w.eventually("repair", func() string {
		if runs := w.scriptLabels("rack-01")[before:]; len(runs) < 2 {
			return fmt.Sprint(runs)
		}

		return ""
	})
	w.waitUntilConverged(2)

	if diff := cmp.Diff([]string{"firewall-rules", "firewall"}, w.scriptLabels("rack-01")[before:]); diff != "" {
		t.Error(diff)
	}
}

func hasReason(conditions []metav1.Condition, condition, reason string) bool {
	c := meta.FindStatusCondition(conditions, condition)

	return c != nil && c.Reason == reason
}

// If a host is deleted during a push, the push is canceled and the host is released.
func TestHostDeletedDuringPush(t *testing.T) {
	t.Parallel()

	w := newFixture(t, 1, rollout(1))
	w.blockScripts("tailscale")
	w.startOperator()
	w.waitWhile("rack-00", "hang", func(m *infrav1.LinuxMachine) bool {
		return m.Status.Push == nil || m.Status.Phase != infrav1.HostBootstrapping
	})

	w.must(env.Client.Delete(t.Context(), w.getHost("rack-00")))

	w.eventually("go", func() string {
		if left := w.listHosts(); len(left) > 0 {
			return fmt.Sprintf("%+v", left[0].Status)
		}

		return ""
	})
}

// Reconciles of many hosts without drift open no connection, read no Secret and render no plan. The
// hosts and Secrets do not exist, so each attempt would be visible.
func TestReconcileWithoutDriftCostsNothing(t *testing.T) {
	t.Parallel()
	checkReconcileWithoutDrift(t, 40)
}

func TestSoakPassWithoutDriftCostsNothing(t *testing.T) {
	property.Soak(t)
	t.Parallel()
	checkReconcileWithoutDrift(t, 1000)
}

func checkReconcileWithoutDrift(t *testing.T, n int) {
	t.Helper()

	w := newFixture(t, 0, rollout(10))
	hash := linux.New(w.planConfig()).Hash()

	w.patchFleet(func(spec *infrav1.HostFleetSpec) {
		none := infrav1.LocalSecretKeySelector{Name: "none", Key: "key"}
		spec.Drain, spec.NodeCredentials = &infrav1.NodeDrain{KubeconfigSecretRef: none}, &infrav1.HostNodeCredentials{KubeconfigSecretRef: none}
	})

	w.cfg.ProbeInterval = time.Hour
	for i := range n {
		m := &infrav1.LinuxMachine{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("rack-%04d", i)},
			Spec: infrav1.LinuxMachineSpec{
				FleetName: fleetName, Address: "127.0.0.1", Port: 1, User: user,
				SSHKeySecretRef: infrav1.LocalSecretKeySelector{Name: "none", Key: "key"},
			},
		}
		// Every second host has a credential that the operator issued.
		if i%2 == 0 {
			m.Spec.KubeconfigSecretRef = infrav1.LocalSecretKeySelector{Name: "none", Key: "key"}
		}

		w.create(m)

		m.Status.HostStatus = infrav1.HostStatus{
			Bootstrapped: true, HostConfigHash: hash, SSHHostKey: "SHA256:x", LastProbeTime: new(metav1.Now()),
		}
		if i%2 == 1 {
			m.Status.NodeCredential = &infrav1.HostNodeCredential{From: metav1.Now(), Until: ago(-time.Hour)}
		}

		w.must(env.Client.Status().Update(t.Context(), m))
	}

	w.configureMacs()
	w.createConvergedMacs(n / 10)
	w.startOperator()
	w.waitUntilConverged(n)
	w.eventually("all Macs have converged", func() string {
		if f := w.getFleetByName("macs"); int(f.Status.Converged) != n/10 || f.Status.MacOSVersion == "" {
			return fmt.Sprintf("%+v", f.Status)
		}

		return ""
	})

	for _, m := range w.listHosts() {
		if m.Status.ContactAttempts != 0 || m.Status.LastContactTime != nil {
			t.Errorf("%s: %+v", m.Name, m.Status)
		}
	}

	families, err := w.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}

	for _, family := range families {
		if name := family.GetName(); name == "hyperfleet_external_call_duration_seconds" || name == "hyperfleet_host_push_duration_seconds" {
			t.Errorf("%s has %d series", name, len(family.GetMetric()))
		}
	}
}

// createConvergedMacs creates objects of Macs that have their configuration and the macOS that
// their fleet names. The Macs do not exist, and neither does Scaleway's API.
func (w *fixture) createConvergedMacs(n int) {
	w.t.Helper()

	programs, err := mac.Load(w.cfg.Mac)
	w.must(err)

	none := infrav1.LocalSecretKeySelector{Name: "none", Key: "key"}
	w.create(&infrav1.HostFleet{ObjectMeta: metav1.ObjectMeta{Name: "macs"}, Spec: infrav1.HostFleetSpec{
		HostKind: mac.Name, Drain: &infrav1.NodeDrain{KubeconfigSecretRef: none}, MacOS: &infrav1.HostMacOS{Version: "15.3"},
	}})

	for i := range n {
		m := &infrav1.ScalewayAppleSiliconMachine{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("mac-%04d", i)},
			Spec: infrav1.ScalewayAppleSiliconMachineSpec{
				FleetName: "macs", CredentialsSecretRef: infrav1.ScalewaySecretRef{Name: "none"}, SSHKeySecretRef: none, KubeconfigSecretRef: none,
			},
		}
		w.create(m)

		m.Status.ServerID, m.Status.Addresses = "server", []infrav1.HostAddress{{Type: "ExternalIP", Address: "127.0.0.1"}}
		m.Status.Bootstrapped, m.Status.SSHHostKey, m.Status.OSVersion = true, "SHA256:x", "15.3.1"
		m.Status.HostConfigHash, m.Status.LastProbeTime = mac.New(mac.Options{Fleet: programs}).Hash(), new(metav1.Now())

		w.must(env.Client.Status().Update(w.t.Context(), m))
	}
}
