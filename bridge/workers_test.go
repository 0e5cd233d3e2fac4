// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package bridge_test

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
	"github.com/hyperfleet/hyperfleet/bridge/csr"
	"github.com/hyperfleet/hyperfleet/bridge/hypershift"
	"github.com/hyperfleet/hyperfleet/kit/retry"
	simulator "github.com/hyperfleet/hyperfleet/sim/hypershift"
	"github.com/hyperfleet/hyperfleet/sim/hypershift/hypershifttest"
	"github.com/hyperfleet/hyperfleet/test/must"
)

const (
	workersNamespace = "openshift-machine-config-operator"
	workersAccount   = "node-bootstrapper"
)

// errorLog holds the errors that controllers have logged.
var errorLog = &logBuffer{}

// logBuffer is a log in memory.
type logBuffer struct {
	mu    sync.Mutex
	lines []string
}

func (j *logBuffer) Write(line []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()

	j.lines = append(j.lines, string(line))

	return len(line), nil
}

// hasLine returns whether a line contains all words.
func (j *logBuffer) hasLine(words ...string) bool {
	j.mu.Lock()
	defer j.mu.Unlock()

	return slices.ContainsFunc(j.lines, func(line string) bool {
		return !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(line, word) })
	})
}

// grantCSRPermissions allows workers and nodes to request certificates, as in OpenShift.
func grantCSRPermissions(t *testing.T) {
	t.Helper()

	must.Do(t, installKinds(t.Context(), env.Config))

	for name, subject := range map[string]rbacv1.Subject{
		"workers":  {Kind: rbacv1.ServiceAccountKind, Namespace: workersNamespace, Name: workersAccount},
		"nodes":    {Kind: rbacv1.GroupKind, APIGroup: rbacv1.GroupName, Name: "system:nodes"},
		"stranger": {Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: "stranger"},
	} {
		err := env.Client.Create(t.Context(), &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:node-bootstrapper"},
			Subjects:   []rbacv1.Subject{subject},
		})
		if client.IgnoreAlreadyExists(err) != nil {
			t.Fatalf("bind ClusterRole to %s: %v", name, err)
		}
	}
}

// approverFixture is the HyperShift simulator with an Approver. It counts the Approver's reconciles
// (each of which reads the kubeconfig), its reads of DPUs from the API server, the watches of hosted clusters
// that were started, and the watches that are open.
type approverFixture struct {
	client.Reader

	sim                                               *simulator.Sim
	reconciles, dpuReads, startedWatches, openWatches atomic.Int64
	// registry has the metrics of the Approver.
	registry *prometheus.Registry
}

func (a *approverFixture) Get(ctx context.Context, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
	switch object.(type) {
	case *corev1.Secret:
		a.reconciles.Add(1)
	case *unstructured.Unstructured:
		a.dpuReads.Add(1)
	}

	return a.Reader.Get(ctx, key, object, options...)
}

func (a *approverFixture) transport(next http.RoundTripper) http.RoundTripper {
	return retry.RoundTripperFunc(func(r *http.Request) (*http.Response, error) {
		response, err := next.RoundTrip(r)
		if err == nil && r.URL.Query().Has("watch") {
			a.startedWatches.Add(1)
			a.openWatches.Add(1)
			response.Body = &closeNotifier{ReadCloser: response.Body, onClose: sync.OnceFunc(func() { a.openWatches.Add(-1) })}
		}

		return response, err
	})
}

// closeNotifier is a response body that reports when it is closed.
type closeNotifier struct {
	io.ReadCloser

	onClose func()
}

func (e *closeNotifier) Close() error {
	e.onClose()

	return e.ReadCloser.Close()
}

// workers is a bridge with a hosted cluster whose workers request certificates.
type workers struct {
	t      *testing.T
	beside *approverFixture
	sim    *simulator.Sim
	bridge *v1alpha1.DPFHCPBridge
	dpus   types.NamespacedName
}

// runApprover runs the HyperShift simulator and an Approver until the test ends. Only one may run at a
// time, because the API server is also every hosted cluster.
func runApprover(t *testing.T) *approverFixture {
	t.Helper()
	grantCSRPermissions(t)

	out := &approverFixture{registry: prometheus.NewRegistry()}
	out.sim = hypershifttest.New(t, simulator.Options{Config: env.Config, Supported: supportedVersions()})

	env.StartManager(t, "", func(_ context.Context, mgr ctrl.Manager) error {
		out.Reader = mgr.GetAPIReader()

		return (&csr.Approver{
			Client: mgr.GetClient(), APIReader: out, WrapTransport: out.transport, Recorder: mgr.GetEventRecorder("hyperfleet"),
			Registry: out.registry, Clock: clock.RealClock{}, Log: slog.New(slog.DiscardHandler),
		}).SetupWithManager(mgr)
	})

	return out
}

func newWorkers(t *testing.T, beside *approverFixture) *workers {
	t.Helper()

	w := &workers{t: t, beside: beside, sim: beside.sim}
	namespace, dpf := newNamespace(t), newNamespace(t)
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
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: hypershift.SSHKeySecretName("c1")},
			StringData: map[string]string{hypershift.SSHKeyKey: "ssh-ed25519 AAAA"},
		},
		&corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: hypershift.EncryptionKeySecretName("c1")},
			StringData: map[string]string{hypershift.EncryptionKeyKey: "0123456789abcdef0123456789abcdef"},
		},
		w.bridge,
	)
	cluster := hypershift.NewHostedCluster(w.bridge, "10.0.0.5")
	w.create(cluster)
	t.Cleanup(func() { w.clear(cluster) })
	w.setBridgeStatus()

	return w
}

// clear deletes the bridge and the HostedCluster, so that controllers of later tests do not reconcile
// them. The objects that HyperShift would delete because of its finalizer stay.
func (w *workers) clear(cluster *unstructured.Unstructured) {
	ctx := context.Background()

	for _, object := range []client.Object{cluster, w.bridge} {
		if err := client.IgnoreNotFound(env.Client.Delete(ctx, object)); err != nil {
			w.t.Error(err)
		}
	}

	none := map[string]any{"metadata": map[string]any{"finalizers": nil}}
	if err := client.IgnoreNotFound(env.Client.Patch(ctx, cluster, mergePatch(none))); err != nil {
		w.t.Error(err)
	}
}

// setBridgeStatus sets the status that the bridge's controller sets when HyperShift has written the
// kubeconfig.
func (w *workers) setBridgeStatus() {
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

	must.Do(w.t, env.Client.Status().Update(w.t.Context(), w.bridge))
}

func (w *workers) create(objects ...client.Object) {
	w.t.Helper()

	for _, o := range objects {
		if err := env.Client.Create(w.t.Context(), o); err != nil {
			w.t.Fatalf("create %T %s: %v", o, o.GetName(), err)
		}
	}
}

func (w *workers) eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()

	for deadline := time.Now().Add(waitTimeout); !holds(); time.Sleep(checkInterval) {
		if time.Now().After(deadline) {
			t.Fatalf("timeout: %s", what)
		}
	}
}
