// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package bridge_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlconfig "sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/log"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
	config "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
	"github.com/hyperfleet/hyperfleet/bridge"
	"github.com/hyperfleet/hyperfleet/bridge/hypershift"
	kitlog "github.com/hyperfleet/hyperfleet/kit/log"
	simulator "github.com/hyperfleet/hyperfleet/sim/hypershift"
	"github.com/hyperfleet/hyperfleet/sim/hypershift/crds"
	"github.com/hyperfleet/hyperfleet/sim/registry"
	"github.com/hyperfleet/hyperfleet/test/kube"
)

const (
	// patience bounds a wait.
	patience = 2 * time.Minute
	lookAt   = 50 * time.Millisecond

	metalLB    = "metallb-system"
	repository = "openshift-release-dev/ocp-release"
	sshKey     = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f admin"
	delay      = 20 * time.Millisecond
)

// The API server and the image registry of this package's tests. Tests keep apart by
// namespace, and by address.
var (
	env     *kube.Env
	images  *registry.Server
	served  *httptest.Server
	onStage stage
)

func TestMain(m *testing.M) {
	log.SetLogger(kitlog.Logr(slog.New(slog.NewTextHandler(logged, &slog.HandlerOptions{Level: slog.LevelError}))))

	images = registry.New(registry.Options{Users: map[string]string{"user": "password"}})
	served = httptest.NewTLSServer(images)

	for _, tag := range []string{"4.15.0-x86_64", "4.16.0-x86_64", "4.9.0-x86_64"} {
		images.Push(repository, tag)
	}

	code := kube.Run(m, func(e *kube.Env) { env = e },
		kube.WithCRDs("../deploy/crds"), kube.WithScheme(v1alpha1.AddToScheme), kube.WithControllerManager(),
		kube.WithUses("../test/access/testdata/uses.yaml", "bridge", "hyperfleet-bridge"))

	served.Close()

	for _, violation := range images.Violations() {
		fmt.Fprintln(os.Stderr, "violation: registry:", violation)

		code = 1
	}

	os.Exit(code)
}

// stage is what most tests share while there are any: HyperShift, MetalLB and the area, all
// on the API server. Tests that are not parallel find it empty, and may fill it themselves.
type stage struct {
	mu      sync.Mutex
	tests   int
	sim     *simulator.Sim
	counted *counts
	end     func() error
}

// enter fills the stage for the first test; the last one clears it, and is told what went
// wrong.
func (s *stage) enter(t testing.TB) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.tests == 0 {
		must(t, s.fill())
	}

	s.tests++

	t.Cleanup(func() {
		s.mu.Lock()
		defer s.mu.Unlock()

		s.tests--
		if s.tests > 0 {
			return
		}

		if err := s.end(); err != nil {
			t.Error(err)
		}
	})
}

func (s *stage) fill() error {
	// It goes on when the test is over that was the first.
	ctx, cancel := context.WithCancel(context.Background())

	if err := errors.Join(crds.Install(ctx, env.Config), makeNode(ctx)); err != nil {
		cancel()

		return err
	}

	sim, err := simulator.Start(simulator.Options{Config: env.Config, Supported: supported(), Ignition: true, Families: families, Delays: simulator.Delays{
		Address: delay, Kubeconfig: delay, ControlPlane: delay, Rollout: delay, Delete: delay,
	}})
	if err != nil {
		cancel()

		return err
	}

	s.sim, s.counted = sim, newCounts()
	done := runArea(ctx, clock.RealClock{}, s.counted)

	s.end = func() error {
		cancel()

		err := errors.Join(<-done, sim.Close(), s.counted.check())
		for _, violation := range sim.Violations() {
			err = errors.Join(err, fmt.Errorf("violation: %s: %s", violation.Object, violation.What))
		}

		return errors.Join(append(sim.Problems(), err)...)
	}

	return nil
}

// image is a reference to an image of the registry.
func image(tag string) string { return registryHost() + "/" + repository + ":" + tag }

func registryHost() string { return strings.TrimPrefix(served.URL, "https://") }

// pullSecret is a Docker configuration that logs in to the registry.
func pullSecret(user, password string) string {
	auth := base64.StdEncoding.EncodeToString([]byte(user + ":" + password))

	return fmt.Sprintf(`{"auths": {%q: {"auth": %q}}}`, registryHost(), auth)
}

// supported are the versions that HyperShift runs.
func supported() []string { return []string{"4.16", "4.15"} }

// makeNode makes a node of the management cluster that is ready.
func makeNode(ctx context.Context) error {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}}

	err := env.Client.Create(ctx, node)
	if apierrors.IsAlreadyExists(err) {
		return nil
	}

	if err != nil {
		return fmt.Errorf("make node: %w", err)
	}

	node.Status = corev1.NodeStatus{
		Addresses:  []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.20.0.1"}, {Type: corev1.NodeHostName, Address: "node-a"}},
		Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
	}
	if err := env.Client.Status().Update(ctx, node); err != nil {
		return fmt.Errorf("make node: %w", err)
	}

	return nil
}

// settings are those of the area. Pools of bridges' own may only be of these.
func settings() config.Bridge {
	cfg := config.Default().Bridge
	cfg.AddressRanges = []string{"10.0.0.0/8", "fd00:10::/64"}

	return cfg
}

// runArea runs the area as its process would, until the context ends.
func runArea(ctx context.Context, clk clock.WithTicker, count *counts) <-chan error {
	done := make(chan error, 1)
	kubeconfig := env.Record("hyperfleet-bridge", env.Config)
	kubeconfig.QPS = -1
	kubeconfig.Wrap(count.transport)

	mgr, err := ctrl.NewManager(kubeconfig, ctrl.Options{
		Scheme: env.Scheme, Metrics: metricsserver.Options{BindAddress: "0"}, NewClient: count.newClient,
		Controller: ctrlconfig.Controller{SkipNameValidation: new(true)},
	})
	if err != nil {
		done <- err

		return done
	}

	area := &bridge.Area{
		Config: settings(), Registry: prometheus.NewRegistry(), Clock: clk, Log: slog.New(slog.DiscardHandler),
		Transport: served.Client().Transport,
	}
	if err := area.Setup(ctx, mgr); err != nil {
		done <- err

		return done
	}

	go func() { done <- mgr.Start(ctx) }()

	return done
}

// world is a namespace of bridges and one of DPUClusters.
type world struct {
	t               testing.TB
	namespace, dpus string
	// patience bounds each wait.
	patience time.Duration
}

func newWorld(t testing.TB) *world {
	t.Helper()
	onStage.enter(t)

	return newWorldAlone(t)
}

// newWorldAlone is a world on an API server where nothing is on the stage.
func newWorldAlone(t testing.TB) *world {
	t.Helper()

	w := &world{t: t, patience: patience, namespace: newNamespace(t), dpus: newNamespace(t)}
	w.create(&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: w.namespace}, Provisioner: "csi.example.com"})
	w.create(w.secret("ssh-key", v1alpha1.SSHKeySecretKey, sshKey))
	w.create(w.secret("pull-secret", v1alpha1.PullSecretKey, pullSecret("user", "password")))
	t.Cleanup(w.clear)

	return w
}

// newNamespace makes a namespace that stays: to delete it, Kubernetes would go through all
// kinds that there are, and a hundred times that is more than all else that is done here.
func newNamespace(t testing.TB) string {
	t.Helper()

	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}
	must(t, env.Client.Create(t.Context(), namespace))

	return namespace.Name
}

// clear deletes all bridges, and looks whether anything is left of them.
func (w *world) clear() {
	ctx := context.Background()

	if err := env.Client.DeleteAllOf(ctx, &v1alpha1.DPFHCPBridge{}, client.InNamespace(w.namespace)); err != nil {
		w.t.Error(err)
	}

	w.eventually("no bridge is left", func() bool {
		var list v1alpha1.DPFHCPBridgeList

		return env.Client.List(ctx, &list, client.InNamespace(w.namespace)) == nil && len(list.Items) == 0
	})

	w.eventually("nothing is left", func() bool { return len(w.made()) == 0 })

	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: w.namespace}}
	if err := client.IgnoreNotFound(env.Client.Delete(ctx, class)); err != nil {
		w.t.Error(err)
	}
}

// made lists what there is of the world's bridges, but for what Kubernetes collects: its collector
// looks for new kinds, such as HyperShift's, twice a minute.
func (w *world) made() []string {
	w.t.Helper()

	var out []string

	selector := client.MatchingLabels{hypershift.LabelNamespace: w.namespace}

	for _, list := range []*unstructured.UnstructuredList{
		listOf(hypershift.HostedClusterKind()), listOf(hypershift.NodePoolKind()), listOf(hypershift.IPAddressPoolKind()),
		listOf(hypershift.L2AdvertisementKind()), listOf(corev1.SchemeGroupVersion.WithKind("Secret")),
	} {
		if err := env.Client.List(context.Background(), list, selector); err != nil {
			w.t.Error(err)
		}

		for i := range list.Items {
			if object := &list.Items[i]; !ownerless(object) {
				out = append(out, object.GetKind()+" "+client.ObjectKeyFromObject(object).String())
			}
		}
	}

	return out
}

// ownerless says whether an owner of an object is gone.
func ownerless(object *unstructured.Unstructured) bool {
	return slices.ContainsFunc(object.GetOwnerReferences(), func(ref metav1.OwnerReference) bool {
		owner := &unstructured.Unstructured{}
		owner.SetAPIVersion(ref.APIVersion)
		owner.SetKind(ref.Kind)

		err := env.Client.Get(context.Background(), client.ObjectKey{Namespace: object.GetNamespace(), Name: ref.Name}, owner)

		return apierrors.IsNotFound(err) || err == nil && owner.GetUID() != ref.UID
	})
}

func (w *world) secret(name, key, value string) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name}, Data: map[string][]byte{key: []byte(value)},
	}
}

// dpuCluster makes a DPUCluster that is in a phase.
func (w *world) dpuCluster(name, phase string) *unstructured.Unstructured {
	w.t.Helper()

	object := hypershift.New(hypershift.DPUClusterKind())
	object.SetNamespace(w.dpus)
	object.SetName(name)
	object.Object["spec"] = map[string]any{"type": "static", "maxNodes": int64(10)}
	w.create(object)
	w.status(object, map[string]any{"phase": phase, "nodesCount": int64(0)})

	return object
}

func (w *world) status(object *unstructured.Unstructured, status map[string]any) {
	w.t.Helper()

	object.Object["status"] = status
	w.must(env.Client.Status().Patch(w.t.Context(), object.DeepCopy(), merge(map[string]any{"status": status})))
}

// bridge is a bridge that is exposed on nodes' ports, with all it needs but its DPUCluster.
func (w *world) bridge(name string) *v1alpha1.DPFHCPBridge {
	return &v1alpha1.DPFHCPBridge{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name},
		Spec: v1alpha1.DPFHCPBridgeSpec{
			DPUClusterRef: v1alpha1.ObjectReference{Namespace: w.dpus, Name: name}, BaseDomain: "clusters.example.com",
			OCPReleaseImage: image("4.15.0-x86_64"), SSHKeySecretRef: v1alpha1.LocalObjectReference{Name: "ssh-key"},
			PullSecretRef: v1alpha1.LocalObjectReference{Name: "pull-secret"}, EtcdStorageClass: w.namespace,
			ControlPlaneAvailabilityPolicy: v1alpha1.SingleReplica, InfrastructureAvailabilityPolicy: v1alpha1.SingleReplica,
			ClusterType: "dpf-dev",
		},
	}
}

// exposed is a bridge with an address of MetalLB's.
func (w *world) exposed(name, address string) *v1alpha1.DPFHCPBridge {
	b := w.bridge(name)
	b.Spec.ExposeThroughLoadBalancer, b.Spec.MetalLBVirtualIP = true, address

	return b
}

func (w *world) create(object client.Object) {
	w.t.Helper()
	w.must(env.Client.Create(w.t.Context(), object))
}

func (w *world) must(err error) {
	w.t.Helper()

	must(w.t, err)
}

func (w *world) eventually(what string, check func() bool) {
	w.t.Helper()

	for end := time.Now().Add(w.patience); !check(); time.Sleep(lookAt) {
		if time.Now().After(end) {
			w.t.Fatalf("wait for %s: in vain", what)
		}
	}
}

// get reads a bridge again.
func (w *world) get(b *v1alpha1.DPFHCPBridge) *v1alpha1.DPFHCPBridge {
	w.t.Helper()

	out := &v1alpha1.DPFHCPBridge{}
	if err := env.Client.Get(context.Background(), client.ObjectKeyFromObject(b), out); err != nil && !apierrors.IsNotFound(err) {
		w.t.Fatal(err)
	}

	return out
}

// says waits until a condition has a status and a reason, and its message a part, and gives
// the bridge.
func (w *world) says(b *v1alpha1.DPFHCPBridge, condition, want, part string) *v1alpha1.DPFHCPBridge {
	w.t.Helper()

	var last *v1alpha1.DPFHCPBridge

	for end := time.Now().Add(w.patience); ; time.Sleep(lookAt) {
		last = w.get(b)

		c := meta.FindStatusCondition(last.Status.Conditions, condition)
		if c != nil && string(c.Status)+" "+c.Reason == want && strings.Contains(c.Message, part) {
			return last
		}

		if time.Now().After(end) {
			w.t.Fatalf("wait for %s %q with %q in vain; the status is\n%s", condition, want, part, describe(last))
		}
	}
}

// reaches waits for a phase, and gives the bridge.
func (w *world) reaches(b *v1alpha1.DPFHCPBridge, phase v1alpha1.DPFHCPBridgePhase) *v1alpha1.DPFHCPBridge {
	w.t.Helper()

	for end := time.Now().Add(w.patience); ; time.Sleep(lookAt) {
		last := w.get(b)
		if last.Status.Phase == phase && last.Status.ObservedGeneration == last.Generation {
			return last
		}

		if time.Now().After(end) {
			w.t.Fatalf("wait for phase %s in vain; the status is\n%s", phase, describe(last))
		}
	}
}

func describe(b *v1alpha1.DPFHCPBridge) string {
	out := []string{fmt.Sprintf("  phase %s: %s", b.Status.Phase, b.Status.Message)}
	for _, c := range b.Status.Conditions {
		out = append(out, fmt.Sprintf("  %s %s %s: %s", c.Type, c.Status, c.Reason, c.Message))
	}

	return strings.Join(out, "\n")
}

// patch changes a bridge.
func (w *world) patch(b *v1alpha1.DPFHCPBridge, change func(*v1alpha1.DPFHCPBridge)) {
	w.t.Helper()

	now := w.get(b)
	changed := now.DeepCopy()
	change(changed)
	w.must(env.Client.Patch(w.t.Context(), changed, client.MergeFrom(now)))
}

// warned checks whether an event with a reason has been told of a bridge.
func (w *world) warned(b *v1alpha1.DPFHCPBridge, reason string, want bool) {
	w.t.Helper()

	told := func() bool {
		var list eventsv1.EventList
		w.must(env.Client.List(w.t.Context(), &list, client.InNamespace(w.namespace)))

		for i := range list.Items {
			if e := &list.Items[i]; e.Regarding.Name == b.Name && e.Reason == reason {
				return true
			}
		}

		return false
	}

	if want {
		w.eventually("event "+reason, told)
	} else if told() {
		w.t.Errorf("event %s was told", reason)
	}
}

func must(t testing.TB, err error) {
	t.Helper()

	if err != nil {
		t.Fatal(err)
	}
}
