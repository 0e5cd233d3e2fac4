// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package hosts_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
)

// newCredentialed is a world whose hosts are given the credentials of their Nodes.
func newCredentialed(t *testing.T, names ...string) *world {
	t.Helper()

	w := newWorld(t, 0, rollout(1))
	w.kubeconfig(env.Config)
	w.credentials()

	for _, name := range names {
		w.hostWith(name, func(*infrav1.LinuxMachineSpec) {})
	}

	return w
}

func (w *world) credentials() {
	w.t.Helper()
	w.patchFleet(func(spec *infrav1.HostFleetSpec) {
		spec.NodeCredentials = &infrav1.HostNodeCredentials{
			KubeconfigSecretRef: infrav1.LocalSecretKeySelector{Name: nodesKubeconfig, Key: "kubeconfig"},
			Lifetime:            metav1.Duration{Duration: 3 * time.Hour},
		}
	})
}

// brought is the kubeconfig that a host was given last, and a client with it.
func (w *world) brought(name string) (string, client.Client) {
	w.t.Helper()

	text := w.hosts[name].Payload("kubeconfig")

	config, err := clientcmd.RESTConfigFromKubeConfig([]byte(text[:strings.LastIndex(strings.TrimSpace(text), "\n")]))
	w.must(err)

	out, err := client.New(config, client.Options{Scheme: env.Scheme})
	w.must(err)

	return text, out
}

// A host is given a credential that is its own Node's, and with which it can do nothing to others.
func TestHostsAreGivenTheirNodesCredentials(t *testing.T) {
	t.Parallel()

	const name, other = "credential-a", "credential-b"

	w := newCredentialed(t, name, other)
	w.start()
	w.converged(2)

	_, node := w.brought(name)

	who := &authenticationv1.SelfSubjectReview{}
	w.must(node.Create(t.Context(), who))

	if diff := cmp.Diff([]string{"system:node:" + name, "system:nodes"}, append([]string{who.Status.UserInfo.Username}, who.Status.UserInfo.Groups[0])); diff != "" {
		t.Errorf("the holder is another one: %s", diff)
	}

	for _, node := range []string{name, other} {
		_, as := w.brought(node)
		w.must(as.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}))

		t.Cleanup(func() { _ = env.Client.Delete(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}) })
	}

	theirs := env.Node(t, other)
	base := theirs.DeepCopy()
	theirs.Labels = map[string]string{"mine": "now"}

	if err := node.Patch(t.Context(), theirs, client.MergeFrom(base)); !apierrors.IsForbidden(err) {
		t.Errorf("it may change another Node: %v", err)
	}

	secret := &corev1.Secret{}
	if err := node.Get(t.Context(), client.ObjectKey{Namespace: w.namespace, Name: "hosts"}, secret); !apierrors.IsForbidden(err) {
		t.Errorf("it may read a Secret that no pod of its Node has: %v", err)
	}

	got := w.get(name).Status.NodeCredential
	if got == nil || time.Until(got.Until.Time) > 3*time.Hour || time.Until(got.Until.Time) < 2*time.Hour {
		t.Errorf("on record is %+v", got)
	}

	w.says(name, infrav1.ConditionNodeCredentialCurrent, "True Current: it holds until ")
}

// Two thirds of its time over, a credential is renewed as a part that was lost is brought back:
// nothing else is sent, and one host at a time. A new operator renews nothing that holds.
func TestCredentialsAreRenewed(t *testing.T) {
	t.Parallel()

	names := []string{"renewed-a", "renewed-b", "renewed-c"}

	w := newCredentialed(t, names...)
	w.start()
	w.converged(len(names))

	runs, texts := map[string]int{}, map[string]string{}
	for _, name := range names {
		runs[name] = len(w.runs(name))
		texts[name], _ = w.brought(name)
	}

	w.restart("agent one")
	w.converged(len(names))
	w.forgetMost()

	for _, name := range names {
		if more := w.runs(name)[runs[name]:]; len(more) > 0 {
			t.Errorf("%s was sent %v by a new operator", name, more)
		}

		w.note(name, func(s *infrav1.LinuxMachineStatus) {
			s.NodeCredential.From, s.NodeCredential.Until = ago(2*time.Hour+time.Minute), ago(-59*time.Minute)
		})
	}

	for _, name := range names {
		w.eventually(name+" is renewed", func() string {
			if c := w.get(name).Status.NodeCredential; time.Until(c.Until.Time) < time.Hour {
				return c.Until.String()
			}

			return ""
		})

		if diff := cmp.Diff([]string{"kubeconfig", "agent-service"}, w.runs(name)[runs[name]:]); diff != "" {
			t.Errorf("%s: more or less than the credential: %s", name, diff)
		}

		text, node := w.brought(name)
		if text == texts[name] || node.Create(t.Context(), &authenticationv1.SelfSubjectReview{}) != nil {
			t.Errorf("%s has the old credential, or none that is taken", name)
		}
	}

	if most := w.mostBusy(); most != 1 {
		t.Errorf("%d hosts at a time, 1 is allowed", most)
	}
}

func ago(d time.Duration) metav1.Time {
	return metav1.NewTime(time.Now().Add(-d).Truncate(time.Second))
}

// What keeps a credential from being made is told, and is no fault of the host's: it goes on when
// that is mended.
func TestCredentialsThatAreNotMade(t *testing.T) {
	t.Parallel()

	const name = "uncredentialed"

	w := newCredentialed(t, name)
	w.kubeconfig(env.ServiceAccount(t, w.namespace, "nobody"))
	w.start()
	w.says(name, infrav1.ConditionBootstrapped, "NodeCredentialForbidden: make certificate signing request hyperfleet-"+name)
	w.patchFleet(func(spec *infrav1.HostFleetSpec) { spec.NodeCredentials = nil })
	w.says(name, infrav1.ConditionBootstrapped, "NoKubeconfig: there is nothing that the host could join its cluster with")
	w.kubeconfig(env.Config)
	w.credentials()
	w.converged(1)

	if s := w.get(name).Status; s.BootstrapAttempts != 0 || s.FailureReason != "" {
		t.Errorf("it counts against the host: %+v", s)
	}

	// A kubeconfig that the host names itself takes the place of ours.
	m := w.get(name)
	base := m.DeepCopy()
	m.Spec.KubeconfigSecretRef = infrav1.LocalSecretKeySelector{Name: "hosts", Key: "kubeconfig"}

	w.must(env.Client.Patch(t.Context(), m, client.MergeFrom(base)))

	w.eventually("the host has the named one", func() string {
		if text := w.hosts[name].Payload("kubeconfig"); !strings.HasPrefix(text, kubeconfig) || w.get(name).Status.NodeCredential != nil {
			return "it has another"
		}

		return ""
	})
}

// A host that is deleted is left without the credential, and one that can't be reached is not
// waited for when its credential is over.
func TestCredentialsAreRemoved(t *testing.T) {
	t.Parallel()

	const name, away, keyless = "given-up", "given-up-and-away", "given-up-without-a-key"

	w := newCredentialed(t, name, away, keyless)
	w.start()
	w.converged(3)
	w.deleteHost(name)
	w.gone(name)

	if runs := w.runs(name); runs[len(runs)-1] != "leave" {
		t.Errorf("the last thing that was done is %v", runs)
	}

	w.hosts[away].SetDown(true)
	w.deleteHost(away)
	w.says(away, infrav1.ConditionNodeCredentialRemoved, "False Unreachable")
	w.note(away, func(s *infrav1.LinuxMachineStatus) { s.NodeCredential.RemovalStartedAt = new(ago(6 * time.Minute)) })
	w.gone(away)
	w.told(away, "NodeCredentialLeft")

	// In a namespace that is deleted the Secret goes before the host: nobody waits for it for long.
	w.delete(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "hosts"}})
	w.deleteHost(keyless)
	w.says(keyless, infrav1.ConditionNodeCredentialRemoved, "all the same")
	w.says(keyless, infrav1.ConditionNodeCredentialRemoved, "False SecretNotFound")
	w.note(keyless, func(s *infrav1.LinuxMachineStatus) { s.NodeCredential.RemovalStartedAt = new(ago(61 * time.Second)) })
	w.gone(keyless)
	w.told(keyless, "NodeCredentialLeft")
}

// No key of a host is in any object.
func TestKeysOfHostsAreInNoObject(t *testing.T) {
	t.Parallel()

	const name = "secretive"

	w := newCredentialed(t, name)
	w.start()
	w.converged(1)

	text, _ := w.brought(name)
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
		t.Errorf("%d requests, or one with the key", len(ours))
	}

	var secrets corev1.SecretList
	if err := env.Client.List(t.Context(), &secrets, client.InNamespace(w.namespace)); err != nil || len(secrets.Items) != 2 {
		t.Errorf("%d Secrets, want those of the test alone: %v", len(secrets.Items), err)
	}
}
