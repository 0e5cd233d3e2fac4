// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package csr_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
	"github.com/hyperfleet/hyperfleet/bridge/csr"
	"github.com/hyperfleet/hyperfleet/bridge/foreign"
	kitlog "github.com/hyperfleet/hyperfleet/kit/log"
	"github.com/hyperfleet/hyperfleet/sim/hypershift"
	"github.com/hyperfleet/hyperfleet/sim/hypershift/crds"
	"github.com/hyperfleet/hyperfleet/sim/hypershift/hypershifttest"
	"github.com/hyperfleet/hyperfleet/test/kube"
)

const (
	// patience bounds a wait.
	patience = 2 * time.Minute
	lookAt   = 50 * time.Millisecond

	workersNamespace = "openshift-machine-config-operator"
	workersAccount   = "node-bootstrapper"
)

var (
	// env is the API server of all tests: management cluster and hosted cluster in one.
	env *kube.Env
	// logged is what controllers have logged.
	logged = &journal{}
)

// journal is a log in memory.
type journal struct {
	mu    sync.Mutex
	lines []string
}

func (j *journal) Write(line []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()

	j.lines = append(j.lines, string(line))

	return len(line), nil
}

// has says whether a line has all the words.
func (j *journal) has(words ...string) bool {
	j.mu.Lock()
	defer j.mu.Unlock()

	return slices.ContainsFunc(j.lines, func(line string) bool {
		return !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(line, word) })
	})
}

func TestMain(m *testing.M) {
	log.SetLogger(kitlog.Logr(slog.New(slog.NewTextHandler(logged, nil))))

	os.Exit(kube.Run(m, func(e *kube.Env) {
		env = e

		if err := furnish(context.Background()); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}, kube.WithCRDs("../../deploy/crds"), kube.WithControllerManager(), kube.WithScheme(v1alpha1.AddToScheme)))
}

// furnish lets workers and nodes ask for certificates, as in OpenShift.
func furnish(ctx context.Context) error {
	if err := crds.Install(ctx, env.Config); err != nil {
		return err
	}

	for name, subject := range map[string]rbacv1.Subject{
		"workers":  {Kind: rbacv1.ServiceAccountKind, Namespace: workersNamespace, Name: workersAccount},
		"nodes":    {Kind: rbacv1.GroupKind, APIGroup: rbacv1.GroupName, Name: "system:nodes"},
		"stranger": {Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: "stranger"},
	} {
		err := env.Client.Create(ctx, &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:node-bootstrapper"},
			Subjects:   []rbacv1.Subject{subject},
		})
		if err != nil {
			return fmt.Errorf("let %s ask: %w", name, err)
		}
	}

	return nil
}

// world is a bridge with a hosted cluster, and an Approver that runs.
type world struct {
	t      *testing.T
	sim    *hypershift.Sim
	bridge *v1alpha1.DPFHCPBridge
	dpus   types.NamespacedName
}

func newWorld(t *testing.T) *world {
	t.Helper()

	w := &world{t: t, sim: hypershifttest.New(t, hypershift.Options{Config: env.Config})}
	namespace, dpf := env.Namespace(t), env.Namespace(t)
	w.dpus = types.NamespacedName{Namespace: dpf, Name: "dpus"}
	w.bridge = &v1alpha1.DPFHCPBridge{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "c1"},
		Spec: v1alpha1.DPFHCPBridgeSpec{
			DPUClusterRef: v1alpha1.ObjectReference{Namespace: dpf, Name: "dpus"}, BaseDomain: "example.com",
			OCPReleaseImage: "quay.io/openshift-release-dev/ocp-release:4.15.0-x86_64",
			SSHKeySecretRef: v1alpha1.LocalObjectReference{Name: "ssh"}, PullSecretRef: v1alpha1.LocalObjectReference{Name: "pull"},
			EtcdStorageClass: "standard", ControlPlaneAvailabilityPolicy: v1alpha1.SingleReplica,
			InfrastructureAvailabilityPolicy: v1alpha1.SingleReplica, ClusterType: "test",
		},
	}

	w.create(
		&corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "pull"},
			StringData: map[string]string{v1alpha1.PullSecretKey: `{"auths":{"quay.io":{"auth":"YTpi"}}}`},
		},
		&corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: foreign.SSHKeyName("c1")},
			StringData: map[string]string{foreign.SSHKeyKey: "ssh-ed25519 AAAA"},
		},
		&corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: foreign.EncryptionKeyName("c1")},
			StringData: map[string]string{foreign.EncryptionKeyKey: "0123456789abcdef0123456789abcdef"},
		},
		w.bridge,
	)
	w.create(foreign.HostedCluster(w.bridge, "10.0.0.5"))
	w.run()
	w.comesUp()

	return w
}

// comesUp says of the bridge what its controller says when HyperShift has written the
// kubeconfig.
func (w *world) comesUp() {
	w.t.Helper()

	secret := &corev1.Secret{}
	secret.Namespace, secret.Name = w.bridge.Namespace, "c1-admin-kubeconfig"

	w.eventually(w.t, "HyperShift writes the kubeconfig", func() bool {
		return env.Client.Get(w.t.Context(), client.ObjectKeyFromObject(secret), secret) == nil
	})

	w.bridge.Status.KubeconfigSecretRef = &v1alpha1.LocalObjectReference{Name: secret.Name}
	w.bridge.Status.Conditions = []metav1.Condition{{
		Type: v1alpha1.ConditionHostedClusterCreated, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonCreated,
		LastTransitionTime: metav1.Now(),
	}}

	if err := env.Client.Status().Update(w.t.Context(), w.bridge); err != nil {
		w.t.Fatal(err)
	}
}

// run runs the Approver until the test ends.
func (w *world) run() {
	w.t.Helper()

	env.Manage(w.t, "", func(_ context.Context, mgr ctrl.Manager) error {
		return (&csr.Approver{
			Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Recorder: mgr.GetEventRecorder("hyperfleet"),
			Registry: prometheus.NewRegistry(), Clock: clock.RealClock{}, Log: slog.New(slog.DiscardHandler),
		}).SetupWithManager(mgr)
	})
}

func (w *world) create(objects ...client.Object) {
	w.t.Helper()

	for _, o := range objects {
		if err := env.Client.Create(w.t.Context(), o); err != nil {
			w.t.Fatalf("make %T %s: %v", o, o.GetName(), err)
		}
	}
}

func (w *world) eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()

	for deadline := time.Now().Add(patience); !holds(); time.Sleep(lookAt) {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
	}
}
