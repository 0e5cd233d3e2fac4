// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package bridge_test

import (
	"context"
	"fmt"

	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
	config "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/kubeproc"
	"github.com/hyperfleet/hyperfleet/kit/procrun"
	"github.com/hyperfleet/hyperfleet/sim/hypershift"
	"github.com/hyperfleet/hyperfleet/sim/hypershift/hypershifttest"
	"github.com/hyperfleet/hyperfleet/sim/registry"
	"github.com/hyperfleet/hyperfleet/sim/registry/registrytest"
	"github.com/hyperfleet/hyperfleet/test/progress"
)

const (
	// waitTimeout is the limit of a wait. Most waits take seconds on two cores.
	waitTimeout  = 2 * time.Minute
	pollInterval = 50 * time.Millisecond
	// delay is how long each step of HyperShift and MetalLB takes.
	delay = 50 * time.Millisecond

	repository = "openshift-release-dev/ocp-release"
	tag        = "4.15.0-x86_64"
	nextTag    = "4.16.2-x86_64"
	metallb    = "metallb-system"
)

// fixture is a namespace with the simulated HyperShift and its neighbors, and an operator that is started and
// killed.
type fixture struct {
	t testing.TB
	// logf prints a line of progress.
	logf func(format string, args ...any)
	// namespace is the namespace of the bridges, and dpf that of their DPUClusters.
	namespace, dpf string
	sim            *hypershift.Sim
	registry       *registrytest.Server

	// userSecrets are Secrets that a user created, and that bridges must not delete.
	userSecrets []string

	dir, config, log string
	kubeconfig       string

	mu      sync.Mutex
	process *procrun.Process
}

// newFixture creates a fixture. The hosted clusters are the management cluster, or hosted if it is set, where the
// operator then approves workers' certificates. changes are applied to the options of HyperShift.
func newFixture(t testing.TB, hosted *rest.Config, changes ...func(*hypershift.Options)) *fixture {
	t.Helper()

	w := &fixture{t: t, logf: progress.NewPrinter(t), namespace: env.Namespace(t), dpf: env.Namespace(t), dir: t.TempDir()}

	options := hypershift.Options{Config: env.Config, Delays: hypershift.Delays{
		Address: delay, Kubeconfig: delay, ControlPlane: delay, Rollout: delay, Delete: delay,
	}}
	if hosted != nil {
		options.Kubeconfig = func(string, string) ([]byte, error) { return kubeproc.Kubeconfig(hosted) }
	}

	for _, change := range changes {
		change(&options)
	}

	w.sim = hypershifttest.New(t, options)
	w.registry = registrytest.New(t, registry.Options{Users: map[string]string{"puller": "secret"}})

	for _, version := range []string{tag, nextTag} {
		w.registry.Push(repository, version)
	}

	w.writeConfig(hosted != nil)
	t.Cleanup(w.end)

	return w
}

// writeConfig writes the operator's configuration.
func (w *fixture) writeConfig(approves bool) {
	w.config, w.log = filepath.Join(w.dir, "operator.yaml"), filepath.Join(w.dir, "operator.log")

	text, err := yaml.Marshal(map[string]any{
		"apiVersion": config.APIVersion, "kind": config.KindOperatorConfig, "namespace": system,
		"log":            map[string]any{"level": "INFO", "format": "text"},
		"metrics":        map[string]any{"bindAddress": "0"},
		"health":         map[string]any{"bindAddress": "0"},
		"webhooks":       map[string]any{"bindAddress": "0"},
		"leaderElection": map[string]any{"enabled": false},
		"runners":        map[string]any{"platformURLs": []string{"https://" + w.registry.Host}},
		"bridge":         map[string]any{"registryCAFile": w.registry.CAFile(w.t), "csrApproval": approves},
	})
	if err != nil {
		w.t.Fatal(err)
	}

	if err := os.WriteFile(w.config, text, 0o600); err != nil {
		w.t.Fatal(err)
	}
}

// start starts an operator with this client configuration. It kills the running one first.
func (w *fixture) start(restConfig *rest.Config) {
	w.t.Helper()
	w.kill()

	if w.kubeconfig == "" {
		w.kubeconfig = env.Kubeconfig(w.t, restConfig)
	}

	process, err := procrun.Start(context.Background(), procrun.Spec{
		Name: "operator", Path: binary, Dir: w.dir, LogPath: w.log,
		Args: []string{"operator", "--controllers=bridge", "--config", w.config, "--kubeconfig", w.kubeconfig},
		Env:  []string{"HOME=" + w.dir, "PATH=" + os.Getenv("PATH")},
	})
	if err != nil {
		w.t.Fatal(err)
	}

	w.mu.Lock()
	defer w.mu.Unlock()

	w.process = process
}

// kill kills the operator with SIGKILL.
func (w *fixture) kill() {
	w.mu.Lock()
	process := w.process
	w.process = nil
	w.mu.Unlock()

	if process == nil {
		return
	}

	if err := process.Kill(); err != nil {
		w.t.Logf("kill the operator: %v", err)
	}
}

// end kills the operator, and logs the end of its log if the test has failed.
func (w *fixture) end() {
	w.kill()

	if w.t.Failed() {
		log := w.readLog()
		w.t.Logf("the end of the operator's log:\n%s", log[max(0, len(log)-6000):])
	}
}

func (w *fixture) readLog() string {
	text, err := os.ReadFile(w.log)
	if err != nil && !os.IsNotExist(err) {
		w.t.Fatal(err)
	}

	return string(text)
}

func (w *fixture) eventually(what string, holds func() bool) {
	w.t.Helper()

	for deadline := time.Now().Add(waitTimeout); !holds(); time.Sleep(pollInterval) {
		if time.Now().After(deadline) {
			w.t.Fatalf("timed out waiting for: %s\n%s", what, w.describe())
		}
	}
}

// describe formats the conditions of all bridges.
func (w *fixture) describe() string {
	var (
		all v1alpha1.DPFHCPBridgeList
		out strings.Builder
	)

	if err := env.Client.List(context.Background(), &all, client.InNamespace(w.namespace)); err != nil {
		return err.Error()
	}

	for i := range all.Items {
		b := &all.Items[i]
		fmt.Fprintf(&out, "%s %s: %s\n", b.Name, b.Status.Phase, b.Status.Message)

		for _, c := range b.Status.Conditions {
			fmt.Fprintf(&out, "  %s %s %s: %s\n", c.Type, c.Status, c.Reason, c.Message)
		}
	}

	return out.String()
}

func (w *fixture) image(tag string) string { return w.registry.Host + "/" + repository + ":" + tag }

func (w *fixture) create(objects ...client.Object) {
	w.t.Helper()

	for _, object := range objects {
		if err := env.Client.Create(w.t.Context(), object); err != nil {
			w.t.Fatalf("create %T %s: %v", object, object.GetName(), err)
		}
	}
}

// createSample creates a bridge of deploy/samples and its prerequisites.
func (w *fixture) createSample(file string) *v1alpha1.DPFHCPBridge {
	w.t.Helper()

	bridge := w.prepareSample(file)
	w.create(bridge)

	return bridge
}

// prepareSample creates a sample's Secrets in the fixture's namespace and a ready DPUCluster, and returns the
// bridge with an image of the fixture's registry.
func (w *fixture) prepareSample(file string) *v1alpha1.DPFHCPBridge {
	w.t.Helper()

	objects, err := kubeproc.ReadObjects(deploy+"samples/"+file, deploy+"samples/secrets.yaml")
	if err != nil {
		w.t.Fatal(err)
	}

	bridge := &v1alpha1.DPFHCPBridge{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(objects[0].Object, bridge); err != nil {
		w.t.Fatal(err)
	}

	for _, object := range objects[1:] {
		name := object.GetName()
		if name != bridge.Spec.SSHKeySecretRef.Name && name != bridge.Spec.PullSecretRef.Name {
			continue
		}

		object.SetNamespace(w.namespace)

		if name == bridge.Spec.PullSecretRef.Name {
			object.Object["stringData"] = map[string]any{v1alpha1.PullSecretKey: w.registry.PullSecret("puller", "secret")}
		}

		w.create(object)
	}

	bridge.Namespace = w.namespace
	bridge.Spec.DPUClusterRef.Namespace = w.dpf
	bridge.Spec.OCPReleaseImage = w.image(tag)

	at := types.NamespacedName{Namespace: w.dpf, Name: bridge.Spec.DPUClusterRef.Name}
	if err := w.sim.SetDPUCluster(w.t.Context(), at, hypershift.DPUState{Phase: "Ready"}); err != nil {
		w.t.Fatal(err)
	}

	return bridge
}

// createPool creates an address pool of MetalLB.
func (w *fixture) createPool(name, addresses string) {
	w.t.Helper()

	pool := newObject(schema.GroupVersionKind{Group: "metallb.io", Version: "v1beta1", Kind: "IPAddressPool"}, metallb, name)
	pool.Object["spec"] = map[string]any{"addresses": []any{addresses}}
	w.create(pool)
	w.t.Cleanup(func() { w.delete(pool) })
}

func (w *fixture) delete(object client.Object) {
	w.t.Helper()

	if err := client.IgnoreNotFound(env.Client.Delete(context.Background(), object)); err != nil {
		w.t.Errorf("delete %s: %v", object.GetName(), err)
	}
}

func newObject(kind schema.GroupVersionKind, namespace, name string) *unstructured.Unstructured {
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(kind)
	o.SetNamespace(namespace)
	o.SetName(name)

	return o
}

func hypershiftKind(kind string) schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "hypershift.openshift.io", Version: "v1beta1", Kind: kind}
}

// get reads an object. It returns false if the object does not exist.
func (w *fixture) get(object client.Object) bool {
	w.t.Helper()

	err := env.Client.Get(w.t.Context(), client.ObjectKeyFromObject(object), object)
	if err != nil && !apierrors.IsNotFound(err) {
		w.t.Fatal(err)
	}

	return err == nil
}

// waitForPhase waits until the bridge has the phase.
func (w *fixture) waitForPhase(bridge *v1alpha1.DPFHCPBridge, phase v1alpha1.DPFHCPBridgePhase) {
	w.t.Helper()

	w.eventually(fmt.Sprintf("%s is %s", bridge.Name, phase), func() bool {
		return w.get(bridge) && bridge.Status.Phase == phase && bridge.Status.ObservedGeneration == bridge.Generation
	})
}

// upgrade changes the bridge's release.
func (w *fixture) upgrade(bridge *v1alpha1.DPFHCPBridge, tag string) {
	w.t.Helper()
	patch := fmt.Appendf(nil, `{"spec":{"ocpReleaseImage":%q}}`, w.image(tag))
	if err := env.Client.Patch(w.t.Context(), bridge, client.RawPatch(types.MergePatchType, patch)); err != nil {
		w.t.Fatal(err)
	}
}

// deleteAndWait deletes a bridge and waits until all of its objects are deleted.
func (w *fixture) deleteAndWait(bridge *v1alpha1.DPFHCPBridge) {
	w.t.Helper()
	w.delete(bridge)
	w.eventually(bridge.Name+" is deleted", func() bool { return !w.get(bridge) })

	// The garbage collector deletes what the HostedCluster owned.
	w.eventually("nothing is left of bridge "+bridge.Name, func() bool { return len(w.listLeftovers(bridge)) == 0 })
}

// listLeftovers returns the objects of a bridge that exist.
func (w *fixture) listLeftovers(bridge *v1alpha1.DPFHCPBridge) []string {
	w.t.Helper()

	given := append([]string{bridge.Spec.SSHKeySecretRef.Name, bridge.Spec.PullSecretRef.Name}, w.userSecrets...)

	var left []string

	for kind, namespaces := range createdKinds() {
		for _, namespace := range namespaces(w) {
			var list unstructured.UnstructuredList

			list.SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))

			if err := env.Client.List(w.t.Context(), &list, client.InNamespace(namespace)); err != nil {
				w.t.Fatal(err)
			}

			for i := range list.Items {
				if o := &list.Items[i]; belongsTo(o, bridge) && !slices.Contains(given, o.GetName()) {
					left = append(left, kind.Kind+" "+o.GetName())
				}
			}
		}
	}

	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: hypershift.ControlPlaneNamespace(bridge.Namespace, bridge.Name)}}
	if w.get(namespace) {
		left = append(left, "Namespace "+namespace.Name)
	}

	return left
}

// createdKinds returns the kinds that a bridge creates, with their namespaces.
func createdKinds() map[schema.GroupVersionKind]func(*fixture) []string {
	own := func(w *fixture) []string { return []string{w.namespace} }
	pools := func(*fixture) []string { return []string{metallb} }

	return map[schema.GroupVersionKind]func(*fixture) []string{
		hypershiftKind("HostedCluster"):                                    own,
		hypershiftKind("NodePool"):                                         own,
		{Group: "metallb.io", Version: "v1beta1", Kind: "IPAddressPool"}:   pools,
		{Group: "metallb.io", Version: "v1beta1", Kind: "L2Advertisement"}: pools,
		{Version: "v1", Kind: "Secret"}:                                    func(w *fixture) []string { return []string{w.namespace, w.dpf} },
	}
}

// belongsTo returns true if an object was created for a bridge.
func belongsTo(o *unstructured.Unstructured, bridge *v1alpha1.DPFHCPBridge) bool {
	return o.GetNamespace() == bridge.Namespace && strings.HasPrefix(o.GetName(), bridge.Name) ||
		o.GetLabels()["dpf.hcp.bridge.com/namespace"] == bridge.Namespace && o.GetLabels()["dpf.hcp.bridge.com/name"] == bridge.Name
}

// getAPIService returns the Service of the control plane's API server.
func (w *fixture) getAPIService(bridge *v1alpha1.DPFHCPBridge) *corev1.Service {
	w.t.Helper()

	service := &corev1.Service{}
	at := types.NamespacedName{Namespace: hypershift.ControlPlaneNamespace(bridge.Namespace, bridge.Name), Name: "kube-apiserver"}

	if err := env.Client.Get(w.t.Context(), at, service); err != nil {
		w.t.Fatal(err)
	}

	return service
}

// getAddress returns the address that MetalLB assigned to the Service of a hosted API server.
func (w *fixture) getAddress(bridge *v1alpha1.DPFHCPBridge) string {
	w.t.Helper()

	ingress := w.getAPIService(bridge).Status.LoadBalancer.Ingress
	if len(ingress) == 0 {
		return ""
	}

	address, err := netip.ParseAddr(ingress[0].IP)
	if err != nil {
		w.t.Fatal(err)
	}

	return address.String()
}
