// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package hosts_test

import (
	"encoding/base64"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/test/brokers"
)

// newCredentialFixture returns a fixture for whose hosts the operator issues Node credentials.
func newCredentialFixture(t *testing.T, names ...string) *fixture {
	t.Helper()

	w := newFixture(t, 0, rollout(1))
	w.writeKubeconfig(env.Config)
	w.enableNodeCredentials()

	for _, name := range names {
		w.createHostWith(name, func(*infrav1.LinuxMachineSpec) {})
	}

	return w
}

func (w *fixture) enableNodeCredentials() {
	w.t.Helper()
	w.patchFleet(func(spec *infrav1.HostFleetSpec) {
		spec.NodeCredentials = &infrav1.HostNodeCredentials{
			KubeconfigSecretRef: infrav1.LocalSecretKeySelector{Name: nodesKubeconfig, Key: "kubeconfig"},
			Lifetime:            metav1.Duration{Duration: 3 * time.Hour},
		}
	})
}

// pushedKubeconfig returns the kubeconfig that was pushed to a host last, and a client with it.
func (w *fixture) pushedKubeconfig(name string) (string, client.Client) {
	w.t.Helper()

	text := w.hosts[name].Payload("kubeconfig")

	config, err := clientcmd.RESTConfigFromKubeConfig([]byte(text[:strings.LastIndex(strings.TrimSpace(text), "\n")]))
	w.must(err)

	out, err := client.New(config, client.Options{Scheme: env.Scheme})
	w.must(err)

	return text, out
}

// A host gets a credential of its own Node, which gives no access to other Nodes.
func TestHostsGetNodeCredentials(t *testing.T) {
	t.Parallel()

	const name, other = "credential-a", "credential-b"

	w := newCredentialFixture(t, name, other)
	w.startOperator()
	w.waitUntilConverged(2)

	_, node := w.pushedKubeconfig(name)

	review := &authenticationv1.SelfSubjectReview{}
	w.must(node.Create(t.Context(), review))

	if diff := cmp.Diff([]string{"system:node:" + name, "system:nodes"}, append([]string{review.Status.UserInfo.Username}, review.Status.UserInfo.Groups[0])); diff != "" {
		t.Errorf("user of the credential: %s", diff)
	}

	for _, node := range []string{name, other} {
		_, as := w.pushedKubeconfig(node)
		w.must(as.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}))

		t.Cleanup(func() { _ = env.Client.Delete(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}) })
	}

	theirs := env.GetNode(t, other)
	base := theirs.DeepCopy()
	theirs.Labels = map[string]string{"mine": "now"}

	if err := node.Patch(t.Context(), theirs, client.MergeFrom(base)); !apierrors.IsForbidden(err) {
		t.Errorf("the credential may change another Node: %v", err)
	}

	secret := &corev1.Secret{}
	if err := node.Get(t.Context(), client.ObjectKey{Namespace: w.namespace, Name: "hosts"}, secret); !apierrors.IsForbidden(err) {
		t.Errorf("the credential may read a Secret that no pod of its Node uses: %v", err)
	}

	got := w.getHost(name).Status.NodeCredential
	if got == nil || time.Until(got.Until.Time) > 3*time.Hour || time.Until(got.Until.Time) < 2*time.Hour {
		t.Errorf("the status has %+v", got)
	}

	w.waitForCondition(name, infrav1.ConditionNodeCredentialCurrent, "True Current: the credential is valid until ")
}

// After two thirds of its validity a credential is renewed like a lost part: nothing else is
// pushed, and only to one host at a time. A new operator does not renew valid credentials.
func TestCredentialsAreRenewed(t *testing.T) {
	t.Parallel()

	names := []string{"renewed-a", "renewed-b", "renewed-c"}

	w := newCredentialFixture(t, names...)
	w.startOperator()
	w.waitUntilConverged(len(names))

	runs, texts := map[string]int{}, map[string]string{}
	for _, name := range names {
		runs[name] = len(w.scriptLabels(name))
		texts[name], _ = w.pushedKubeconfig(name)
	}

	w.restart("agent one")
	w.waitUntilConverged(len(names))
	w.resetMaxBusy()

	for _, name := range names {
		if more := w.scriptLabels(name)[runs[name]:]; len(more) > 0 {
			t.Errorf("a new operator ran %[2]v on %[1]s, want no scripts", name, more)
		}

		w.patchStatus(name, func(s *infrav1.LinuxMachineStatus) {
			s.NodeCredential.From, s.NodeCredential.Until = ago(2*time.Hour+time.Minute), ago(-59*time.Minute)
		})
	}

	for _, name := range names {
		w.eventually("the credential of "+name+" is renewed", func() string {
			if c := w.getHost(name).Status.NodeCredential; time.Until(c.Until.Time) < time.Hour {
				return c.Until.String()
			}

			return ""
		})

		if diff := cmp.Diff([]string{"kubeconfig", "agent-service"}, w.scriptLabels(name)[runs[name]:]); diff != "" {
			t.Errorf("%s: pushed more or less than the credential: %s", name, diff)
		}

		text, node := w.pushedKubeconfig(name)
		if text == texts[name] || node.Create(t.Context(), &authenticationv1.SelfSubjectReview{}) != nil {
			t.Errorf("%s has the old credential, or an invalid one", name)
		}
	}

	if most := w.maxBusyHosts(); most != 1 {
		t.Errorf("pushes to %d hosts at a time, want 1", most)
	}
}

// If the cluster of the Nodes gets another CA, a host gets a credential with the CA that the fleet's kubeconfig has,
// long before its certificate expires.
func TestCredentialsHaveTheCAOfTheirCluster(t *testing.T) {
	t.Parallel()

	const name = "ca-replaced"

	w := newCredentialFixture(t, name)
	w.cfg.ProbeInterval = time.Second
	w.startOperator()
	w.waitUntilConverged(1)

	before, _ := w.pushedKubeconfig(name)
	readySince := w.readySince(name)
	caData := w.replaceCA()

	w.eventually("the host has a kubeconfig with both CAs", func() string {
		if text := w.hosts[name].Payload("kubeconfig"); text == before {
			return "it has the former one"
		}

		return ""
	})
	w.waitUntilConverged(1)

	after, node := w.pushedKubeconfig(name)
	if err := node.Create(t.Context(), &authenticationv1.SelfSubjectReview{}); err != nil || !strings.Contains(after, base64.StdEncoding.EncodeToString(caData)) {
		t.Errorf("the credential is invalid, or lacks the CA: %v", err)
	}

	if now := w.readySince(name); !now.Equal(&readySince) {
		t.Errorf("the host was not Ready until %s, although its former credential is valid", now)
	}

	pushed, runs := len(w.scriptLabels(name)), len(w.hosts[name].Runs())
	w.eventually("the host is probed twice", func() string {
		if len(w.hosts[name].Runs()) < runs+2 {
			return "not yet"
		}

		return ""
	})

	if more := w.scriptLabels(name)[pushed:]; slices.Contains(more, "kubeconfig") {
		t.Errorf("the credential is pushed again and again: %v", more)
	}
}

// A credential that did not reach its host before its cluster got another CA is not pushed later.
func TestUnusedCredentialsAreIssuedAgain(t *testing.T) {
	t.Parallel()

	const name = "ca-replaced-while-down"

	w := newCredentialFixture(t, name)
	w.startOperator()
	w.waitUntilConverged(1)

	failedContacts := func(n int32) {
		t.Helper()

		before := w.getHost(name).Status.ContactAttempts
		w.eventually("the push of the new credential fails", func() string {
			if now := w.getHost(name).Status.ContactAttempts; now < before+n {
				return fmt.Sprintf("%d times", now-before)
			}

			return ""
		})
	}

	w.hosts[name].SetDown(true)
	w.patchStatus(name, func(s *infrav1.LinuxMachineStatus) {
		s.NodeCredential.From, s.NodeCredential.Until = ago(2*time.Hour+time.Minute), ago(-59*time.Minute)
	})
	failedContacts(1)

	caData := w.replaceCA()

	failedContacts(2) // the first of them may have begun before
	w.hosts[name].SetDown(false)

	w.eventually("the credential is renewed", func() string {
		if c := w.getHost(name).Status.NodeCredential; time.Until(c.Until.Time) < time.Hour {
			return c.Until.String()
		}

		return ""
	})

	if text, _ := w.pushedKubeconfig(name); !strings.Contains(text, base64.StdEncoding.EncodeToString(caData)) {
		t.Error("the host has a credential with the former CA")
	}
}

// replaceCA adds a CA to the fleet's kubeconfig, and returns both CAs. During the replacement of a CA, clients trust both.
func (w *fixture) replaceCA() []byte {
	w.t.Helper()

	ca, err := os.ReadFile(brokers.NewCA(w.t).File)
	w.must(err)

	config := rest.CopyConfig(env.Config)
	config.CAData = slices.Concat(config.CAData, ca)
	w.writeKubeconfig(config)

	return config.CAData
}

// readySince returns when the condition Ready of a host has changed last.
func (w *fixture) readySince(name string) metav1.Time {
	w.t.Helper()

	return meta.FindStatusCondition(w.getHost(name).Status.Conditions, "Ready").LastTransitionTime
}

func ago(d time.Duration) metav1.Time {
	return metav1.NewTime(time.Now().Add(-d).Truncate(time.Second))
}

// An error that prevents a credential is reported and does not count against the host. The host
// continues when the error is fixed.
func TestCredentialErrors(t *testing.T) {
	t.Parallel()

	const name = "uncredentialed"

	w := newCredentialFixture(t, name)
	w.writeKubeconfig(env.ServiceAccount(t, w.namespace, "nobody"))
	w.startOperator()
	w.waitForCondition(name, infrav1.ConditionBootstrapped, "NodeCredentialForbidden: create certificate signing request hyperfleet-"+name)
	w.patchFleet(func(spec *infrav1.HostFleetSpec) { spec.NodeCredentials = nil })
	w.waitForCondition(name, infrav1.ConditionBootstrapped, "NoKubeconfig: the host has no credential to join its cluster")
	w.writeKubeconfig(env.Config)
	w.enableNodeCredentials()
	w.waitUntilConverged(1)

	if s := w.getHost(name).Status; s.BootstrapAttempts != 0 || s.FailureReason != "" {
		t.Errorf("the error counts against the host: %+v", s)
	}

	// A kubeconfig that the host's spec names replaces the issued one.
	m := w.getHost(name)
	base := m.DeepCopy()
	m.Spec.KubeconfigSecretRef = infrav1.LocalSecretKeySelector{Name: "hosts", Key: "kubeconfig"}

	w.must(env.Client.Patch(t.Context(), m, client.MergeFrom(base)))

	w.eventually("the host has the named kubeconfig", func() string {
		if text := w.hosts[name].Payload("kubeconfig"); !strings.HasPrefix(text, kubeconfig) || w.getHost(name).Status.NodeCredential != nil {
			return "it has another kubeconfig"
		}

		return ""
	})
}

// The credential of a deleted host is removed. A host that is unreachable is released after a
// timeout.
func TestCredentialsAreRemoved(t *testing.T) {
	t.Parallel()

	const name, away, keyless = "given-up", "given-up-and-away", "given-up-without-a-key"

	w := newCredentialFixture(t, name, away, keyless)
	w.startOperator()
	w.waitUntilConverged(3)
	w.deleteHost(name)
	w.waitForDeletion(name)

	if runs := w.scriptLabels(name); runs[len(runs)-1] != "leave" {
		t.Errorf("want the credential's removal as the last script: %v", runs)
	}

	w.hosts[away].SetDown(true)
	w.deleteHost(away)
	w.waitForCondition(away, infrav1.ConditionNodeCredentialRemoved, "False Unreachable")
	w.patchStatus(away, func(s *infrav1.LinuxMachineStatus) { s.NodeCredential.RemovalStartedAt = new(ago(6 * time.Minute)) })
	w.waitForDeletion(away)
	w.waitForEvent(away, "NodeCredentialNotRemoved")

	// A person has deleted the Secret in spite of its finalizer. The host waits only briefly.
	secret := w.getSecret("hosts")
	secret.Finalizers = nil
	w.must(env.Client.Update(t.Context(), secret))
	w.delete(secret)
	w.deleteHost(keyless)
	w.waitForCondition(keyless, infrav1.ConditionNodeCredentialRemoved, "even if its credential is not removed")
	w.waitForCondition(keyless, infrav1.ConditionNodeCredentialRemoved, "False SecretNotFound")
	w.patchStatus(keyless, func(s *infrav1.LinuxMachineStatus) { s.NodeCredential.RemovalStartedAt = new(ago(61 * time.Second)) })
	w.waitForDeletion(keyless)
	w.waitForEvent(keyless, "NodeCredentialNotRemoved")
}

// No private key of a host is stored in any object.
func TestKeysOfHostsAreInNoObject(t *testing.T) {
	t.Parallel()

	const name = "secretive"

	w := newCredentialFixture(t, name)
	w.startOperator()
	w.waitUntilConverged(1)

	text, _ := w.pushedKubeconfig(name)
	config, err := clientcmd.Load([]byte(text[:strings.LastIndex(strings.TrimSpace(text), "\n")]))
	if err != nil {
		t.Fatal(err)
	}

	key := strings.Split(string(config.AuthInfos["hyperfleet"].ClientKeyData), "\n")[1]

	var requests certificatesv1.CertificateSigningRequestList
	w.must(env.Client.List(t.Context(), &requests))

	ours := slices.DeleteFunc(requests.Items, func(r certificatesv1.CertificateSigningRequest) bool {
		return !strings.HasPrefix(r.Name, "hyperfleet-"+name+"-")
	})
	if len(ours) != 1 || strings.Contains(string(ours[0].Spec.Request), key) {
		t.Errorf("%d certificate signing requests, or one of them contains the key", len(ours))
	}

	var secrets corev1.SecretList
	if err := env.Client.List(t.Context(), &secrets, client.InNamespace(w.namespace)); err != nil || len(secrets.Items) != 2 {
		t.Errorf("%d Secrets, want only those of the test: %v", len(secrets.Items), err)
	}
}
