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
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
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
	"github.com/hyperfleet/hyperfleet/test/must"
)

const (
	// waitTimeout bounds a wait.
	waitTimeout   = 2 * time.Minute
	checkInterval = 100 * time.Millisecond

	metalLB    = "metallb-system"
	repository = "openshift-release-dev/ocp-release"
	sshKey     = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f admin"
	delay      = 20 * time.Millisecond
)

// The API server and the image registry of this package's tests. Tests use different namespaces and addresses.
var (
	env    *kube.Env
	images *registry.Server
	served *httptest.Server
	shared sharedEnv
	// kindsInstalled is true while the API server has the CRDs of crds.Install.
	kindsInstalled atomic.Bool
)

func TestMain(m *testing.M) {
	log.SetLogger(kitlog.ToLogr(slog.New(slog.NewTextHandler(errorLog, &slog.HandlerOptions{Level: slog.LevelError}))))

	images = registry.New(registry.Options{Users: map[string]string{"user": "password"}})
	served = httptest.NewTLSServer(images)

	for _, tag := range []string{"4.15.0-x86_64", "4.16.0-x86_64", "4.9.0-x86_64"} {
		images.Push(repository, tag)
	}

	code := kube.Run(m, &env, kube.ForArea("bridge"), kube.WithControllerManager())

	served.Close()

	for _, violation := range images.Violations() {
		fmt.Fprintln(os.Stderr, "violation: registry:", violation)

		code = 1
	}

	os.Exit(code)
}

// sharedEnv is shared by most tests while one of them runs: the simulators of HyperShift and MetalLB,
// and the area, on the API server. A test that is not parallel finds it stopped, and may start its own.
type sharedEnv struct {
	mu     sync.Mutex
	tests  int
	sim    *simulator.Sim
	counts *counts
	stop   func() error
}

// join starts the environment for the first test. The last test stops it and reports errors.
func (s *sharedEnv) join(t testing.TB) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.tests == 0 {
		must.Do(t, s.start())
	}

	s.tests++

	t.Cleanup(func() {
		s.mu.Lock()
		defer s.mu.Unlock()

		s.tests--
		if s.tests > 0 {
			return
		}

		if err := s.stop(); err != nil {
			t.Error(err)
		}
	})
}

func (s *sharedEnv) start() error {
	// The context must outlive the test that started the environment.
	ctx, cancel := context.WithCancel(context.Background())

	if err := errors.Join(installKinds(ctx, env.Config), createReadyNode(ctx)); err != nil {
		cancel()

		return err
	}

	sim, err := simulator.Start(simulator.Options{Config: env.Config, Supported: supportedVersions(), Ignition: true, Families: families, Delays: simulator.Delays{
		Address: delay, Kubeconfig: delay, ControlPlane: delay, Rollout: delay, Delete: delay,
	}})
	if err != nil {
		cancel()

		return err
	}

	s.sim, s.counts = sim, newCounts()
	done := runArea(ctx, clock.RealClock{}, s.counts)

	s.stop = func() error {
		cancel()

		err := errors.Join(<-done, sim.Close(), s.counts.check())
		for _, violation := range sim.Violations() {
			err = errors.Join(err, fmt.Errorf("violation: %s: %s", violation.Object, violation.Message))
		}

		return errors.Join(append(sim.Problems(), err)...)
	}

	return nil
}

// installKinds installs the CRDs of the other projects, unless an earlier test has done that. HyperShift's CRD has 600 KB,
// and takes the API server seconds also if it is there.
func installKinds(ctx context.Context, clusterConfig *rest.Config) error {
	if kindsInstalled.Load() {
		return nil
	}

	if err := crds.Install(ctx, clusterConfig); err != nil {
		return err
	}

	kindsInstalled.Store(true)

	return nil
}

// image returns the name of an image in the registry.
func image(tag string) string { return registryHost() + "/" + repository + ":" + tag }

func registryHost() string { return strings.TrimPrefix(served.URL, "https://") }

// pullSecret returns a Docker configuration with a login for the registry.
func pullSecret(user, password string) string {
	auth := base64.StdEncoding.EncodeToString([]byte(user + ":" + password))

	return fmt.Sprintf(`{"auths": {%q: {"auth": %q}}}`, registryHost(), auth)
}

// supportedVersions returns the versions that HyperShift supports.
func supportedVersions() []string { return []string{"4.16", "4.15"} }

// createReadyNode creates a ready node of the management cluster.
func createReadyNode(ctx context.Context) error {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}}

	err := env.Client.Create(ctx, node)
	if apierrors.IsAlreadyExists(err) {
		return nil
	}

	if err != nil {
		return fmt.Errorf("create node: %w", err)
	}

	node.Status = corev1.NodeStatus{
		Addresses:  []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.20.0.1"}, {Type: corev1.NodeHostName, Address: "node-a"}},
		Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
	}
	if err := env.Client.Status().Update(ctx, node); err != nil {
		return fmt.Errorf("create node: %w", err)
	}

	return nil
}

// areaConfig returns the configuration of the area, with the address ranges for which bridges may create
// pools.
func areaConfig() config.Bridge {
	cfg := config.Default().Bridge
	cfg.AddressRanges = []string{"10.0.0.0/8", "fd00:10::/64"}

	return cfg
}

// runArea runs the area as its process would, until the context is done.
func runArea(ctx context.Context, clk clock.WithTicker, count *counts) <-chan error {
	done := make(chan error, 1)
	kubeconfig := env.RecordUses("hyperfleet-bridge", env.Config)
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
		Config: areaConfig(), Registry: count.registry, Clock: clk, Log: slog.New(slog.DiscardHandler),
		RegistryTransport: served.Client().Transport,
	}
	if err := area.Setup(ctx, mgr); err != nil {
		done <- err

		return done
	}

	go func() { done <- mgr.Start(ctx) }()

	return done
}

// fixture is a namespace for bridges and a namespace for DPUClusters.
type fixture struct {
	t                       testing.TB
	namespace, dpuNamespace string
	// timeout bounds each wait.
	timeout time.Duration
}

func newFixture(t testing.TB) *fixture {
	t.Helper()
	shared.join(t)

	return newIsolatedFixture(t)
}

// newIsolatedFixture returns a fixture without the shared environment.
func newIsolatedFixture(t testing.TB) *fixture {
	t.Helper()

	w := &fixture{t: t, timeout: waitTimeout, namespace: newNamespace(t), dpuNamespace: newNamespace(t)}
	w.create(&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: w.namespace}, Provisioner: "csi.example.com"})
	w.create(w.newSecret("ssh-key", v1alpha1.SSHKeySecretKey, sshKey))
	w.create(w.newSecret("pull-secret", v1alpha1.PullSecretKey, pullSecret("user", "password")))
	t.Cleanup(w.clear)

	return w
}

// newNamespace creates a namespace that is not deleted. To delete a namespace, Kubernetes lists all
// kinds, which takes longer than all tests if it is done a hundred times.
func newNamespace(t testing.TB) string {
	t.Helper()

	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}
	must.Do(t, env.Client.Create(t.Context(), namespace))

	return namespace.Name
}

// clear deletes all bridges and checks that nothing is left of them.
func (w *fixture) clear() {
	ctx := context.Background()

	if err := env.Client.DeleteAllOf(ctx, &v1alpha1.DPFHCPBridge{}, client.InNamespace(w.namespace)); err != nil {
		w.t.Error(err)
	}

	w.eventually("no bridge is left", func() bool {
		var list v1alpha1.DPFHCPBridgeList

		return env.Client.List(ctx, &list, client.InNamespace(w.namespace)) == nil && len(list.Items) == 0
	})

	w.eventually("nothing is left", func() bool { return len(w.remainingObjects()) == 0 })

	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: w.namespace}}
	if err := client.IgnoreNotFound(env.Client.Delete(ctx, class)); err != nil {
		w.t.Error(err)
	}
}

// remainingObjects lists the objects of the fixture's bridges, without those that Kubernetes
// garbage-collects. The garbage collector discovers new kinds, such as HyperShift's, only twice a
// minute.
func (w *fixture) remainingObjects() []string {
	w.t.Helper()

	var out []string

	selector := client.MatchingLabels{hypershift.LabelNamespace: w.namespace}

	for _, list := range []*unstructured.UnstructuredList{
		newList(hypershift.HostedClusterKind()), newList(hypershift.NodePoolKind()), newList(hypershift.IPAddressPoolKind()),
		newList(hypershift.L2AdvertisementKind()), newList(corev1.SchemeGroupVersion.WithKind("Secret")),
	} {
		if err := env.Client.List(context.Background(), list, selector); err != nil {
			w.t.Error(err)
		}

		for i := range list.Items {
			if object := &list.Items[i]; !hasDeletedOwner(object) {
				out = append(out, object.GetKind()+" "+client.ObjectKeyFromObject(object).String())
			}
		}
	}

	return out
}

// hasDeletedOwner returns whether an owner of an object is deleted.
func hasDeletedOwner(object *unstructured.Unstructured) bool {
	return slices.ContainsFunc(object.GetOwnerReferences(), func(ref metav1.OwnerReference) bool {
		owner := &unstructured.Unstructured{}
		owner.SetAPIVersion(ref.APIVersion)
		owner.SetKind(ref.Kind)

		err := env.Client.Get(context.Background(), client.ObjectKey{Namespace: object.GetNamespace(), Name: ref.Name}, owner)

		return apierrors.IsNotFound(err) || err == nil && owner.GetUID() != ref.UID
	})
}

func (w *fixture) newSecret(name, key, value string) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name}, Data: map[string][]byte{key: []byte(value)},
	}
}

// createDPUCluster creates a DPUCluster with a phase.
func (w *fixture) createDPUCluster(name, phase string) *unstructured.Unstructured {
	w.t.Helper()

	object := hypershift.NewObject(hypershift.DPUClusterKind())
	object.SetNamespace(w.dpuNamespace)
	object.SetName(name)
	object.Object["spec"] = map[string]any{"type": "static", "maxNodes": int64(10)}
	w.create(object)
	w.patchStatus(object, map[string]any{"phase": phase, "nodesCount": int64(0)})

	return object
}

func (w *fixture) patchStatus(object *unstructured.Unstructured, status map[string]any) {
	w.t.Helper()

	object.Object["status"] = status
	w.must(env.Client.Status().Patch(w.t.Context(), object.DeepCopy(), mergePatch(map[string]any{"status": status})))
}

// createReadyBridge creates a bridge, with its DPUCluster, and waits until it is ready.
func (w *fixture) createReadyBridge(name string) *v1alpha1.DPFHCPBridge {
	w.t.Helper()
	w.createDPUCluster(name, hypershift.PhaseReady)

	b := w.newBridge(name)
	w.create(b)
	w.waitForPhase(b, v1alpha1.PhaseReady)

	return b
}

// newBridge returns a bridge that is exposed on node ports. All objects that it needs exist, except its
// DPUCluster.
func (w *fixture) newBridge(name string) *v1alpha1.DPFHCPBridge {
	return &v1alpha1.DPFHCPBridge{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name},
		Spec: v1alpha1.DPFHCPBridgeSpec{
			DPUClusterRef: v1alpha1.ObjectReference{Namespace: w.dpuNamespace, Name: name}, BaseDomain: "clusters.example.com",
			OCPReleaseImage: image("4.15.0-x86_64"), SSHKeySecretRef: v1alpha1.LocalObjectReference{Name: "ssh-key"},
			PullSecretRef: v1alpha1.LocalObjectReference{Name: "pull-secret"}, EtcdStorageClass: w.namespace,
			ControlPlaneAvailabilityPolicy: v1alpha1.SingleReplica, InfrastructureAvailabilityPolicy: v1alpha1.SingleReplica,
			ClusterType: "dpf-dev",
		},
	}
}

// newExposedBridge returns a bridge with an address of MetalLB.
func (w *fixture) newExposedBridge(name, address string) *v1alpha1.DPFHCPBridge {
	b := w.newBridge(name)
	b.Spec.ExposeThroughLoadBalancer, b.Spec.MetalLBVirtualIP = true, address

	return b
}

func (w *fixture) create(object client.Object) {
	w.t.Helper()
	w.must(env.Client.Create(w.t.Context(), object))
}

func (w *fixture) must(err error) {
	w.t.Helper()

	must.Do(w.t, err)
}

func (w *fixture) eventually(what string, check func() bool) {
	w.t.Helper()

	for end := time.Now().Add(w.timeout); !check(); time.Sleep(checkInterval) {
		if time.Now().After(end) {
			w.t.Fatalf("timeout: wait for %s", what)
		}
	}
}

// getBridge reads a bridge again.
func (w *fixture) getBridge(b *v1alpha1.DPFHCPBridge) *v1alpha1.DPFHCPBridge {
	w.t.Helper()

	out := &v1alpha1.DPFHCPBridge{}
	if err := env.Client.Get(context.Background(), client.ObjectKeyFromObject(b), out); err != nil && !apierrors.IsNotFound(err) {
		w.t.Fatal(err)
	}

	return out
}

// waitForCondition waits until a condition has the status and the reason in want, and part in its
// message. It returns the bridge.
func (w *fixture) waitForCondition(b *v1alpha1.DPFHCPBridge, condition, want, part string) *v1alpha1.DPFHCPBridge {
	w.t.Helper()

	var last *v1alpha1.DPFHCPBridge

	for end := time.Now().Add(w.timeout); ; time.Sleep(checkInterval) {
		last = w.getBridge(b)

		c := meta.FindStatusCondition(last.Status.Conditions, condition)
		if c != nil && string(c.Status)+" "+c.Reason == want && strings.Contains(c.Message, part) {
			return last
		}

		if time.Now().After(end) {
			w.t.Fatalf("timeout: wait for %s %q with %q; the status is\n%s", condition, want, part, describe(last))
		}
	}
}

// waitForPhase waits for a phase and returns the bridge.
func (w *fixture) waitForPhase(b *v1alpha1.DPFHCPBridge, phase v1alpha1.DPFHCPBridgePhase) *v1alpha1.DPFHCPBridge {
	w.t.Helper()

	for end := time.Now().Add(w.timeout); ; time.Sleep(checkInterval) {
		last := w.getBridge(b)
		if last.Status.Phase == phase && last.Status.ObservedGeneration == last.Generation {
			return last
		}

		if time.Now().After(end) {
			w.t.Fatalf("timeout: wait for phase %s; the status is\n%s", phase, describe(last))
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

// patchBridge changes a bridge.
func (w *fixture) patchBridge(b *v1alpha1.DPFHCPBridge, change func(*v1alpha1.DPFHCPBridge)) {
	w.t.Helper()

	now := w.getBridge(b)
	changed := now.DeepCopy()
	change(changed)
	w.must(env.Client.Patch(w.t.Context(), changed, client.MergeFrom(now)))
}

// checkEvent checks whether an event with the reason was recorded for a bridge.
func (w *fixture) checkEvent(b *v1alpha1.DPFHCPBridge, reason string, want bool) {
	w.t.Helper()

	hasEvent := func() bool {
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
		w.eventually("event "+reason, hasEvent)
	} else if hasEvent() {
		w.t.Errorf("event %s was recorded", reason)
	}
}
