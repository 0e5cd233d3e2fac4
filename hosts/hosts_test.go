// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package hosts_test

import (
	"fmt"
	"os"
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

// plan is what the operator's configuration brings to all hosts.
func (w *world) plan() linuxplan.Config {
	w.t.Helper()

	out, err := linux.Load(w.cfg.Linux, os.ReadFile)
	w.must(err)

	return out
}

// planOf is what it brings to one.
func (w *world) planOf(name string) plan.Plan {
	w.t.Helper()

	cfg := w.plan()
	cfg.NodeName, cfg.Kubeconfig = name, log.NewSecret(kubeconfig)

	out, err := linuxplan.Render(cfg)
	w.must(err)

	return out
}

func rollout(most int) infrav1.HostRollout {
	return infrav1.HostRollout{MaxUnavailable: new(intstr.FromInt(most)), Canary: new(int32(1)), FailureThreshold: 1}
}

// From new hosts to a fleet, and then to another configuration: a canary first, never more
// than allowed at a time, and only what has changed.
func TestFleetFollowsItsConfiguration(t *testing.T) {
	t.Parallel()

	const n = 6

	w := newWorld(t, n, rollout(2))
	w.start()
	first := w.converged(n)

	for name, host := range w.hosts {
		m, p := w.get(name), w.planOf(name)

		var labels []string
		for _, part := range p.Parts() {
			labels = append(labels, part.Label)
		}

		if diff := cmp.Diff(labels, w.runs(name)); diff != "" {
			t.Errorf("%s: not all parts, once each, in order: %s", name, diff)
		}

		if m.Status.SSHHostKey != host.HostKey() || m.Status.Phase != infrav1.HostReady || !m.Status.Bootstrapped {
			t.Errorf("%s: %+v", name, m.Status)
		}

		if diff := cmp.Diff(p.Digests(), partsOf(m)); diff != "" {
			t.Errorf("%s has not what the plan has: %s", name, diff)
		}
	}

	w.forgetMost()
	before := map[string]int{}

	for name := range w.hosts {
		before[name] = len(w.runs(name))
	}

	w.restart("agent two")

	if second := w.converged(n); second == first {
		t.Error("another agent, and the same hash")
	}

	if most := w.mostBusy(); most > 2 || most < 1 {
		t.Errorf("%d hosts at a time, 2 are allowed", most)
	}

	for name := range w.hosts {
		if diff := cmp.Diff([]string{"agent", "agent-service"}, w.runs(name)[before[name]:]); diff != "" {
			t.Errorf("%s: more or less than has changed: %s", name, diff)
		}
	}

	w.eventually("events", func() string {
		if got := w.events("rack-00"); !slices.Contains(got, "AgentRolled") {
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

// A bad configuration gets to the canary and no further; another one fixes all.
func TestBadConfigurationStopsAtTheCanary(t *testing.T) {
	t.Parallel()

	const n = 4

	w := newWorld(t, n, rollout(3))
	w.start()
	good := w.converged(n)

	for _, host := range w.hosts {
		host.Inject(machost.Fault{Label: "agent", What: machost.Fail})
	}

	w.restart("agent bad")

	var stopped *infrav1.HostFleet

	w.eventually("stop", func() string {
		if stopped = w.fleet(); stopped.Status.StoppedHash == "" || len(stopped.Status.Permits) > 0 {
			return fmt.Sprintf("%+v", stopped.Status)
		}

		return ""
	})

	if !meta.IsStatusConditionTrue(stopped.Status.Conditions, infrav1.ConditionRolloutStopped) {
		t.Errorf("%+v", stopped.Status.Conditions)
	}

	var canary string

	for _, m := range w.all() {
		switch {
		case m.Status.FailedHostConfigHash == "":
			if m.Status.HostConfigHash != good {
				t.Errorf("%s was touched: %+v", m.Name, m.Status)
			}
		case canary != "":
			t.Errorf("%s failed, and so did %s", canary, m.Name)
		default:
			canary = m.Name

			if m.Status.UpdateAttempts != 1 || m.Status.HostConfigHash != "" || slices.ContainsFunc(partsOf(&m), isAgent) {
				t.Errorf("canary: %+v", m.Status)
			}
		}
	}

	w.eventually("event", func() string {
		if got := append(w.events(canary), w.events(fleetName)...); !slices.Contains(got, "AgentRollFailed") || !slices.Contains(got, "RolloutStopped") {
			return fmt.Sprint(got)
		}

		return ""
	})

	for _, host := range w.hosts {
		host.Fix()
	}

	w.restart("agent fixed")
	w.converged(n)

	if m := w.get(canary); m.Status.FailedHostConfigHash != "" || m.Status.UpdateAttempts != 0 {
		t.Errorf("it has converged, and still: %+v", m.Status)
	}
}

func isAgent(d plan.Digest) bool { return d.Label == "agent" }

// A host that refuses a configuration too often has failed for good, until the
// configuration is another one.
func TestFailedForGoodHealsByItself(t *testing.T) {
	t.Parallel()

	r := rollout(1)
	r.FailureThreshold = 10
	w := newWorld(t, 1, r)
	w.start()
	w.converged(1)
	w.hosts["rack-00"].Inject(machost.Fault{Label: "agent", What: machost.Fail})
	w.restart("agent bad")

	w.waitWhile("rack-00", "fail", func(m *infrav1.LinuxMachine) bool {
		return m.Status.FailureReason != infrav1.FailureUpdateExceededRetries || m.Status.Phase != infrav1.HostFailed || m.Status.Ready
	})

	if m := w.get("rack-00"); int(m.Status.UpdateAttempts) != w.cfg.MaxUpdateAttempts || !strings.Contains(m.Status.FailureMessage, "agent") {
		t.Errorf("%+v", m.Status)
	}

	// Nothing happens by itself, and phase stays what it is.
	runs := len(w.runs("rack-00"))
	w.patchFleet(func(s *infrav1.HostFleetSpec) { s.ResumedAt = new(metav1.Now()) })
	w.note("rack-00", func(s *infrav1.LinuxMachineStatus) { s.Phase = infrav1.HostReady })
	w.eventually("stay failed", func() string {
		return strings.TrimPrefix(string(w.get("rack-00").Status.Phase), string(infrav1.HostFailed))
	})

	if after := len(w.runs("rack-00")); after != runs {
		t.Errorf("%d scripts more", after-runs)
	}

	w.hosts["rack-00"].Fix()
	w.restart("agent well")
	w.converged(1)
}

// An operator that is killed in the middle of a push leaves its permit on record: the next
// one does the same host first, and no more at a time than allowed.
func TestKilledInTheMiddle(t *testing.T) {
	t.Parallel()

	const n = 4

	w := newWorld(t, n, rollout(1))
	w.start()
	w.converged(n)
	w.forgetMost()

	goOn := w.hold("agent")

	w.restart("agent two")

	var held infrav1.LinuxMachine

	w.eventually("hang", func() string {
		for _, m := range w.all() {
			if m.Status.Push != nil && w.mostBusy() > 0 {
				held = m

				return ""
			}
		}

		return "nobody is pushed to"
	})

	permits := w.fleet().Status.Permits
	if len(permits) != 1 || permits[0].Host != held.Name || held.Status.Push.Permit != permits[0].Number || held.Status.HostConfigHash != "" {
		t.Errorf("permits %+v, push %+v", permits, held.Status.Push)
	}

	w.stop()
	goOn()
	w.restart("agent two")
	w.converged(n)

	if most := w.mostBusy(); most > 1 {
		t.Errorf("%d hosts at a time", most)
	}

	if m := w.get(held.Name); m.Status.LastPermit != permits[0].Number {
		t.Errorf("%s went on under permit %d, not %d", m.Name, m.Status.LastPermit, permits[0].Number)
	}
}

// A host that by its record needs nothing is asked all the same before it is called
// converged: a push that was cut off at its end was never looked at.
func TestNothingToPushIsStillLookedAt(t *testing.T) {
	t.Parallel()

	w := newWorld(t, 1, rollout(1))
	w.start()
	w.converged(1)

	before := len(w.runs("rack-00"))
	w.hosts["rack-00"].Lose("agent")
	w.note("rack-00", func(s *infrav1.LinuxMachineStatus) { s.HostConfigHash = "" })
	w.eventually("repair", func() string {
		if runs := w.runs("rack-00")[before:]; !slices.Equal(runs, []string{"agent", "agent-service"}) {
			return fmt.Sprint(runs)
		}

		return ""
	})
	w.converged(1)
}

// What a host loses is found by its probe, and brought back, and nothing else.
func TestLostPartsAreRepaired(t *testing.T) {
	t.Parallel()

	w := newWorld(t, 2, rollout(1))
	w.cfg.ProbeInterval = 300 * time.Millisecond
	w.start()
	w.converged(2)

	before := len(w.runs("rack-01"))
	w.hosts["rack-01"].Lose("firewall-rules")
	w.eventually("repair", func() string {
		if runs := w.runs("rack-01")[before:]; len(runs) < 2 {
			return fmt.Sprint(runs)
		}

		return ""
	})
	w.converged(2)

	if diff := cmp.Diff([]string{"firewall-rules", "firewall"}, w.runs("rack-01")[before:]); diff != "" {
		t.Error(diff)
	}
}

func reasonIs(conditions []metav1.Condition, condition, reason string) bool {
	c := meta.FindStatusCondition(conditions, condition)

	return c != nil && c.Reason == reason
}

// A host that is deleted in the middle of a push is let go, and the push is ended.
func TestDeletedInTheMiddle(t *testing.T) {
	t.Parallel()

	w := newWorld(t, 1, rollout(1))
	w.hold("tailscale")
	w.start()
	w.waitWhile("rack-00", "hang", func(m *infrav1.LinuxMachine) bool {
		return m.Status.Push == nil || m.Status.Phase != infrav1.HostBootstrapping
	})

	w.must(env.Client.Delete(t.Context(), w.get("rack-00")))

	w.eventually("go", func() string {
		if left := w.all(); len(left) > 0 {
			return fmt.Sprintf("%+v", left[0].Status)
		}

		return ""
	})
}

// Many hosts without drift: no connection, no Secret read, nothing rendered. There is no
// host and no Secret there, so whatever tried would show.
func TestPassWithoutDriftCostsNothing(t *testing.T) {
	t.Parallel()
	passWithoutDrift(t, 40)
}

func TestSoakPassWithoutDriftCostsNothing(t *testing.T) {
	property.Soak(t)
	t.Parallel()
	passWithoutDrift(t, 1000)
}

func passWithoutDrift(t *testing.T, n int) {
	t.Helper()

	w := newWorld(t, 0, rollout(10))
	hash := linux.New(w.plan()).Hash()

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
		// Every other one has a credential that the operator made.
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
	w.macsAtRest(n / 10)
	w.start()
	w.converged(n)
	w.eventually("Macs are content with their macOS", func() string {
		if f := w.fleetOf("macs"); int(f.Status.Converged) != n/10 || f.Status.MacOSVersion == "" {
			return fmt.Sprintf("%+v", f.Status)
		}

		return ""
	})

	for _, m := range w.all() {
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

// macsAtRest makes Macs that have their configuration and the macOS that their fleet names. There is
// none, and no Scaleway.
func (w *world) macsAtRest(n int) {
	w.t.Helper()

	programs, err := mac.Load(w.cfg.Mac, os.ReadFile)
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
