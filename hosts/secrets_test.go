// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package hosts_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/credential"
	"github.com/hyperfleet/hyperfleet/kit/keep"
	"github.com/hyperfleet/hyperfleet/test/fixes"
)

// deleteNamespace deletes the namespace of the fixture with everything in it, and waits until it is gone.
func (w *fixture) deleteNamespace() {
	w.t.Helper()
	w.must(env.Client.Delete(w.t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.namespace}}))
}

func (w *fixture) waitForNamespaceDeletion() {
	w.t.Helper()
	w.eventually("the namespace is gone", func() string {
		namespace := &corev1.Namespace{}
		if err := env.Client.Get(w.t.Context(), client.ObjectKey{Name: w.namespace}, namespace); apierrors.IsNotFound(err) {
			return ""
		}

		var macs infrav1.ScalewayAppleSiliconMachineList
		w.must(env.Client.List(w.t.Context(), &macs, client.InNamespace(w.namespace)))

		for _, mac := range macs.Items {
			return fmt.Sprintf("%s: %+v", mac.Name, mac.Status.Conditions)
		}

		return fmt.Sprintf("%+v", namespace.Status.Conditions)
	})
}

// createRole creates the role with which the operator uses the Secrets of the namespace.
func (w *fixture) createRole() {
	w.t.Helper()
	w.create(&rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: keep.RoleName}})
	w.create(&rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: keep.RoleName}, RoleRef: rbacv1.RoleRef{
		APIGroup: rbacv1.GroupName, Kind: "Role", Name: keep.RoleName,
	}})
}

// A namespace that is deleted with its Macs, their fleet and their Secrets is gone when all servers are returned,
// also if the operator starts only after the Secrets were deleted.
func TestNamespaceWithMacsIsDeleted(t *testing.T) {
	t.Parallel()

	for name, isRunning := range map[string]bool{"while the operator runs": true, "while no operator runs": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			prefix := strings.ToLower(strings.ReplaceAll(env.Namespace(t), ".", "-"))
			names := []string{prefix + "-a", prefix + "-b"}
			m := newMacsFixture(t, time.Second, names...)
			m.createRole()
			m.stop()
			m.startOperator()
			m.eventually("the role is kept", func() string {
				binding := &rbacv1.RoleBinding{}
				m.must(env.Client.Get(t.Context(), client.ObjectKey{Namespace: m.namespace, Name: keep.RoleName}, binding))

				if len(binding.Finalizers) == 0 {
					return "it has no finalizer"
				}

				return ""
			})

			if !isRunning {
				m.stop()
			}

			m.deleteNamespace()

			if !isRunning {
				m.eventually("the Secret is being deleted", func() string {
					secret := m.getSecret("scaleway")
					if secret.DeletionTimestamp == nil {
						return "it is not"
					}

					return ""
				})
				m.startOperator()
			}

			m.waitForNamespaceDeletion()

			servers := m.cloud.Servers()
			for _, server := range servers {
				if !server.DeletionScheduled {
					t.Errorf("server %s stays rented", server.Name)
				}
			}

			if len(servers) != len(names) {
				t.Errorf("%d Macs had the servers %v", len(names), formatServers(servers))
			}
		})
	}
}

// The Secret with the API key is gone before its namespace is deleted, because somebody has removed its finalizer. What the
// Macs advise can be done there, and they and the namespace are gone then. Without it, nobody could create the Secret again.
func TestMacsWithoutKeyInDeletedNamespace(t *testing.T) {
	t.Parallel()

	name := strings.ToLower(strings.ReplaceAll(env.Namespace(t), ".", "-")) + "-a"
	m := newMacsFixture(t, time.Second, name)
	m.stop()

	secret := m.getSecret("scaleway")
	secret.Finalizers = nil
	m.must(env.Client.Update(t.Context(), secret))
	m.must(env.Client.Delete(t.Context(), secret))
	m.deleteNamespace()
	m.startOperator()

	var message string

	m.eventually("the Mac says what to do", func() string {
		released := meta.FindStatusCondition(m.getMac(name).Status.Conditions, infrav1.ConditionReleased)
		if released == nil || released.Reason != credential.ReasonSecretNotFound {
			return fmt.Sprintf("%+v", m.getMac(name).Status.Conditions)
		}

		message = released.Message

		return ""
	})

	again := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: m.namespace, Name: "scaleway"}}
	if err := env.Client.Create(t.Context(), again); !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		t.Errorf("create the Secret in a namespace that is being deleted: %v", err)
	}

	serverID := m.getMac(name).Status.ServerID
	if advice := "delete server " + serverID + " at Scaleway"; !strings.Contains(message, advice) {
		t.Errorf("the message %q does not say: %s", message, advice)
	}

	m.cloud.RemoveServer(serverID)
	fixes.Kubectl(t, env, message)
	m.waitForNamespaceDeletion()
}

func (w *fixture) getSecret(name string) *corev1.Secret {
	w.t.Helper()

	secret := &corev1.Secret{}
	w.must(env.Client.Get(w.t.Context(), client.ObjectKey{Namespace: w.namespace, Name: name}, secret))

	return secret
}

// A Secret that somebody deletes stays until the last Mac has returned its server. A Mac that is created
// meanwhile orders none.
func TestDeletedSecretOfMacs(t *testing.T) {
	t.Parallel()

	prefix := strings.ToLower(strings.ReplaceAll(env.Namespace(t), ".", "-"))
	names := []string{prefix + "-a", prefix + "-b"}
	m := newMacsFixture(t, time.Second, names...)

	m.must(env.Client.Delete(t.Context(), m.getSecret("scaleway")))

	late := m.getMac(names[0])
	m.create(&infrav1.ScalewayAppleSiliconMachine{
		ObjectMeta: metav1.ObjectMeta{Name: prefix + "-c"}, Spec: late.Spec,
	})
	m.eventually("the new Mac waits for another Secret", func() string {
		for _, condition := range m.getMac(prefix + "-c").Status.Conditions {
			if condition.Type == "Ready" && condition.Reason == keep.ReasonSecretDeleting {
				return ""
			}
		}

		return fmt.Sprintf("%+v", m.getMac(prefix+"-c").Status)
	})

	for i, name := range append(names, prefix+"-c") {
		m.must(env.Client.Delete(t.Context(), m.getMac(name)))
		m.eventually("the Mac is gone", func() string {
			mac := &infrav1.ScalewayAppleSiliconMachine{}
			if err := env.Client.Get(t.Context(), client.ObjectKey{Namespace: m.namespace, Name: name}, mac); err == nil {
				return fmt.Sprintf("%+v", mac.Status)
			}

			return ""
		})

		secret := &corev1.Secret{}

		err := env.Client.Get(t.Context(), client.ObjectKey{Namespace: m.namespace, Name: "scaleway"}, secret)
		if isLast := i >= len(names)-1; isLast != apierrors.IsNotFound(err) {
			t.Errorf("after Mac %s: the Secret: %v, finalizers %v", name, err, secret.Finalizers)
		}
	}

	if servers := m.cloud.Servers(); len(servers) != len(names) {
		t.Errorf("%d Macs had the servers %v", len(names), formatServers(servers))
	}
}
