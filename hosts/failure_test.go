// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package hosts_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	hfv1 "github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	infrav1 "github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hosts/linux"
	"github.com/hyperfleet/hyperfleet/kit/credential"
	"github.com/hyperfleet/hyperfleet/sim/machost"
)

// An unreachable host has refused nothing, and recovers without help.
func TestUnreachableHostIsNotFailed(t *testing.T) {
	t.Parallel()

	w := newFixture(t, 1, rollout(1))
	w.startOperator()
	w.waitUntilConverged(1)
	w.hosts["rack-00"].SetDown(true)
	w.restart("agent two")

	w.waitWhile("rack-00", "notice", func(m *infrav1.LinuxMachine) bool {
		return m.Status.ContactAttempts < 2 || m.Status.UnreachableSince == nil || w.getFleet().Status.Unreachable != 1
	})

	if m := w.getHost("rack-00"); m.Status.UpdateAttempts != 0 || m.Status.FailureReason != "" || m.Status.ContactReason != "Unreachable" || m.Status.Ready {
		t.Errorf("%+v", m.Status)
	}

	w.hosts["rack-00"].SetDown(false)
	w.waitUntilConverged(1)

	if m := w.getHost("rack-00"); m.Status.UnreachableSince != nil || m.Status.ContactReason != "" || m.Status.ContactAttempts != 0 {
		t.Errorf("%+v", m.Status)
	}
}

// Nothing is pushed to a host with another key until a person has acted.
func TestChangedHostKeyIsRefused(t *testing.T) {
	t.Parallel()

	w := newFixture(t, 1, rollout(1))
	w.startOperator()
	w.waitUntilConverged(1)

	host := w.hosts["rack-00"]
	w.must(host.ChangeKey())

	runs := len(host.Runs())
	w.restart("agent two")

	w.waitWhile("rack-00", "refuse", func(m *infrav1.LinuxMachine) bool {
		return m.Status.FailureReason != infrav1.FailureHostKeyChanged || m.Status.Phase != infrav1.HostFailed
	})

	if after := len(host.Runs()); after != runs {
		t.Errorf("%d scripts ran on a host with another key", after-runs)
	}

	w.patchStatus("rack-00", func(s *infrav1.LinuxMachineStatus) { s.FailureReason, s.FailureMessage, s.SSHHostKey = "", "", "" })
	w.waitUntilConverged(1)

	if m := w.getHost("rack-00"); m.Status.SSHHostKey != host.HostKey() {
		t.Errorf("pinned %s, the host has %s", m.Status.SSHHostKey, host.HostKey())
	}
}

// The operator logs in to a host if the host presents the key of its spec or a certificate of one
// of its certificate authorities. If the spec names neither, the first key is trusted only if the
// spec allows that.
func TestKnownHostKeys(t *testing.T) {
	t.Parallel()

	w := newFixture(t, 5, rollout(5))
	key := w.hosts["rack-00"].HostKey()
	ours, others := w.certifyHost("rack-03"), w.certifyHost("rack-04")

	for name, change := range map[string]func(*infrav1.LinuxMachineSpec){
		"rack-00": func(s *infrav1.LinuxMachineSpec) { s.SSHHostKey, s.SSHHostKeyChecking = key, "" },
		"rack-01": func(s *infrav1.LinuxMachineSpec) { s.SSHHostKey = key },
		"rack-02": func(s *infrav1.LinuxMachineSpec) { s.SSHHostKeyChecking = infrav1.HostKeyStrict },
		"rack-03": func(s *infrav1.LinuxMachineSpec) {
			s.SSHHostCertAuthorities, s.SSHHostKeyChecking = []infrav1.SSHCertAuthority{others, ours}, ""
		},
		"rack-04": func(s *infrav1.LinuxMachineSpec) { s.SSHHostCertAuthorities = []infrav1.SSHCertAuthority{ours} },
	} {
		w.patch(name, change)
	}

	w.startOperator()

	for name, reason := range map[string]string{
		"rack-00": "Known", "rack-01": infrav1.FailureHostKeyChanged, "rack-02": infrav1.ReasonHostKeyUnknown,
		"rack-03": "Certified", "rack-04": "HostCertificateRefused",
	} {
		w.waitWhile(name, name, func(m *infrav1.LinuxMachine) bool {
			return !hasReason(m.Status.Conditions, infrav1.ConditionHostKeyPinned, reason)
		})
	}

	w.eventually("hosts with known keys have their first boot", func() string {
		if a, b := w.getHost("rack-00"), w.getHost("rack-03"); !a.Status.Bootstrapped || !b.Status.Bootstrapped {
			return fmt.Sprintf("%+v; %+v", a.Status, b.Status)
		}

		return ""
	})

	for _, name := range []string{"rack-01", "rack-02", "rack-04"} {
		if logins := w.hosts[name].Logins(); logins > 0 || w.getHost(name).Status.SSHHostKey != "" {
			t.Errorf("%s: %d logins to a host with an unknown key", name, logins)
		}
	}

	w.patch("rack-02", func(s *infrav1.LinuxMachineSpec) { s.SSHHostKeyChecking = infrav1.HostKeyAcceptNew })
	w.waitWhile("rack-02", "the first key is accepted", func(m *infrav1.LinuxMachine) bool {
		return !m.Status.Bootstrapped || !hasReason(m.Status.Conditions, infrav1.ConditionHostKeyPinned, "TrustedOnFirstUse")
	})

	// The key is recorded, so the setting for unknown keys no longer matters.
	w.patch("rack-02", func(s *infrav1.LinuxMachineSpec) { s.SSHHostKeyChecking = "" })
	w.restart("agent two")
	w.waitWhile("rack-02", "the host converges", func(m *infrav1.LinuxMachine) bool {
		return m.Status.ObservedGeneration != m.Generation || m.Status.HostConfigHash != linux.New(w.planConfig()).Hash()
	})
}

// certifyHost makes a new certificate authority certify a host, and returns the authority's public
// key.
func (w *fixture) certifyHost(name string) infrav1.SSHCertAuthority {
	w.t.Helper()

	private, line, err := machost.NewKey()
	w.must(err)

	signer, err := ssh.ParsePrivateKey([]byte(private))
	w.must(err)

	w.must(w.hosts[name].Certify(signer, nil))

	return infrav1.SSHCertAuthority(strings.TrimSpace(line))
}

// patch changes a host's spec.
func (w *fixture) patch(name string, change func(*infrav1.LinuxMachineSpec)) {
	w.t.Helper()

	m := w.getHost(name)
	base := m.DeepCopy()
	change(&m.Spec)

	w.must(env.Client.Patch(w.t.Context(), m, client.MergeFrom(base)))
}

// A Secret that lists its servers is used for no other host, whichever object names it.
func TestSecretsNameTheirHosts(t *testing.T) {
	t.Parallel()

	w := newFixture(t, 3, rollout(3))

	for name, hosts := range map[string]string{
		"key": w.hosts["rack-00"].Address(), "elsewhere": "host.example.com:22",
	} {
		w.create(&corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{hfv1.AnnotationAllowedServers: hosts}},
			StringData: map[string]string{"key": w.key, "kubeconfig": kubeconfig},
		})
	}

	for name, change := range map[string]func(*infrav1.LinuxMachineSpec){
		"rack-00": func(s *infrav1.LinuxMachineSpec) { s.SSHKeySecretRef.Name = "key" },
		"rack-01": func(s *infrav1.LinuxMachineSpec) { s.SSHKeySecretRef.Name = "key" },
		"rack-02": func(s *infrav1.LinuxMachineSpec) { s.KubeconfigSecretRef.Name = "elsewhere" },
	} {
		w.patch(name, change)
	}

	w.startOperator()
	w.waitWhile("rack-00", "rack-00", func(m *infrav1.LinuxMachine) bool {
		return !m.Status.Bootstrapped
	})

	for _, name := range []string{"rack-01", "rack-02"} {
		w.waitWhile(name, name, func(m *infrav1.LinuxMachine) bool {
			return m.Status.ContactReason != credential.ReasonServerNotAllowed
		})
	}

	if logins := w.hosts["rack-01"].Logins(); logins > 0 {
		t.Errorf("%d logins with a key that does not allow it", logins)
	}

	if runs := w.scriptLabels("rack-02"); len(runs) > 0 {
		t.Errorf("%v ran on a host that the kubeconfig does not allow", runs)
	}
}

// Invalid input is reported with a specific reason, and no status contains a secret.
func TestErrorReasons(t *testing.T) {
	t.Parallel()

	w := newFixture(t, 3, rollout(3))
	w.hosts["rack-00"].RefusePasswords(true)

	w.must(w.hosts["rack-01"].SetSudo(machost.SudoRefused))

	for name, ref := range map[string]infrav1.LocalSecretKeySelector{"rack-00": {Name: "hosts", Key: "kubeconfig"}, "rack-02": {Name: "none", Key: "key"}} {
		w.patch(name, func(s *infrav1.LinuxMachineSpec) { s.SSHKeySecretRef = ref })
	}

	w.startOperator()

	for name, reason := range map[string]string{"rack-00": "Misconfigured", "rack-01": "SudoRefused", "rack-02": "SecretNotFound"} {
		w.waitWhile(name, name, func(m *infrav1.LinuxMachine) bool {
			return m.Status.ContactReason != reason || m.Status.BootstrapAttempts != 0 || !hasReason(m.Status.Conditions, "Ready", reason)
		})
	}

	for _, m := range w.listHosts() {
		if text, err := json.Marshal(m.Status); err != nil || strings.Contains(string(text), "kubelet-token") {
			t.Errorf("%v: %s", err, text)
		}
	}
}

// A host whose address is unreachable is pushed to at its fallback address, and a condition reports
// that. Its Secrets must allow the fallback address, too.
func TestHostsAreReachedAtAnotherAddress(t *testing.T) {
	t.Parallel()

	const name = "rack-00"

	w := newFixture(t, 1, rollout(1))
	w.startOperator()
	w.waitUntilConverged(1)

	at := w.hosts[name].Address()
	move := func(address string) {
		w.patch(name, func(s *infrav1.LinuxMachineSpec) {
			s.Address, s.FallbackAddresses = address, []string{"127.0.0.8", "127.0.0.1"}
		})
	}

	move("127.0.0.9")
	w.restart("agent two")
	w.waitUntilConverged(1)
	w.waitForCondition(name, infrav1.ConditionAddressReached, "False FallbackInUse: the host was reached at "+at+" and not at 127.0.0.9:")

	move("127.0.0.1")
	w.restart("agent three")
	w.waitUntilConverged(1)
	w.waitForCondition(name, infrav1.ConditionAddressReached, "True Reached: the host was reached at "+at)

	secret := &corev1.Secret{}
	w.must(env.Client.Get(t.Context(), client.ObjectKey{Namespace: w.namespace, Name: "hosts"}, secret))

	secret.Annotations = map[string]string{hfv1.AnnotationAllowedServers: at}
	w.must(env.Client.Update(t.Context(), secret))

	w.restart("agent four")
	w.eventually("its Secret does not allow the fallback address", func() string {
		if s := w.getHost(name).Status; s.ContactReason != credential.ReasonServerNotAllowed || !strings.Contains(s.ContactMessage, "127.0.0.8") {
			return fmt.Sprintf("%+v", s)
		}

		return ""
	})
}
