// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package bridge_test

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
	"github.com/hyperfleet/hyperfleet/bridge/hypershift"
	"github.com/hyperfleet/hyperfleet/test/must"
)

// runAreaAlone runs the area with the installed CRDs for a test that simulates HyperShift, MetalLB and
// DPF itself and does not run in parallel with other tests. It returns the registry with the area's metrics.
func runAreaAlone(
	t *testing.T, clk clock.WithTicker, install ...func(context.Context, *rest.Config) error,
) *prometheus.Registry {
	t.Helper()

	for _, install := range install {
		must.Do(t, install(t.Context(), env.Config))
	}

	must.Do(t, createReadyNode(t.Context()))

	versions := `{"versions":["` + strings.Join(supportedVersions(), `","`) + `"]}`

	for _, object := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metalLB}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "hypershift"}},
		&corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: "hypershift", Name: "supported-versions"},
			Data:       map[string]string{"supported-versions": versions},
		},
	} {
		err := env.Client.Create(t.Context(), object)
		if versions, ok := object.(*corev1.ConfigMap); ok && apierrors.IsAlreadyExists(err) {
			err = env.Client.Update(t.Context(), versions)
		}

		if client.IgnoreAlreadyExists(err) != nil {
			t.Fatal(err)
		}
	}

	ctx, cancel := context.WithCancel(context.Background())
	counts := newCounts()
	done := runArea(ctx, clk, counts)

	t.Cleanup(func() {
		cancel()

		if err := <-done; err != nil {
			t.Error(err)
		}

		// Before a project is installed, its kinds have no index.
		if err := counts.check(); err != nil && len(install) > 0 {
			t.Error(err)
		}
	})

	return counts.registry
}

func hasCondition(b *v1alpha1.DPFHCPBridge, condition, want string) bool {
	c := meta.FindStatusCondition(b.Status.Conditions, condition)

	return c != nil && string(c.Status)+" "+c.Reason == want
}

// controlPlane is the state of a control plane as the test, in the role of HyperShift, reports it.
type controlPlane struct {
	service    *corev1.Service
	address    string
	conditions map[string]string
	history    list
	nodes      map[string]string
	kubeconfig bool
}

func newReadyControlPlane() controlPlane {
	return controlPlane{
		service: &corev1.Service{Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeNodePort, Ports: []corev1.ServicePort{{Port: 6443}},
		}},
		conditions: map[string]string{"Available": "True AsExpected", "Progressing": "False AsExpected", "Degraded": "False AsExpected"},
		history:    list{"Completed"}, nodes: map[string]string{"AllMachinesReady": "False AsExpected", "AllNodesHealthy": "False AsExpected"},
		kubeconfig: true,
	}
}

// simulateReadyHyperShift simulates HyperShift with a ready control plane.
func (w *fixture) simulateReadyHyperShift(b *v1alpha1.DPFHCPBridge) {
	w.t.Helper()
	w.simulateHyperShift(b, newReadyControlPlane())
}

// simulateHyperShift simulates HyperShift and MetalLB for a bridge after the bridge has created its
// objects.
func (w *fixture) simulateHyperShift(b *v1alpha1.DPFHCPBridge, p controlPlane) {
	w.t.Helper()
	w.waitForCondition(b, v1alpha1.ConditionHostedClusterCreated, "True Created", "")

	if p.service != nil {
		w.eventually("NodePool", func() bool { return w.getBridge(b).Status.NodePoolRef != nil })
	}

	namespace := hypershift.ControlPlaneNamespace(b.Namespace, b.Name)
	if p.service != nil {
		w.must(client.IgnoreAlreadyExists(env.Client.Create(w.t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})))
		w.createService(p, namespace)
	}

	status := anyMap{"conditions": newConditions(p.conditions)}
	if p.service != nil {
		status["controlPlaneEndpoint"] = anyMap{"host": "10.20.0.1", "port": int64(30443)}
		w.patchStatus(w.readObject(hypershift.NewObject(hypershift.NodePoolKind()), w.namespace, b.Name), anyMap{"conditions": newConditions(p.nodes)})
	}

	history := list{}
	for _, state := range p.history {
		history = append(history, anyMap{
			"image": b.Spec.OCPReleaseImage, "state": state, "version": "4.15.0", "startedTime": "2026-01-01T00:00:00Z",
			"completionTime": "2026-01-01T00:00:00Z",
		})
	}

	if len(history) > 0 {
		status["controlPlaneVersion"] = anyMap{
			"desired": anyMap{"image": b.Spec.OCPReleaseImage, "version": "4.15.0"}, "history": history, "observedGeneration": int64(1),
		}
	}

	if p.kubeconfig {
		secret := w.newSecret(b.Name+"-admin-kubeconfig", "kubeconfig", "apiVersion: v1")
		w.must(client.IgnoreAlreadyExists(env.Client.Create(w.t.Context(), secret)))

		status["kubeconfig"] = anyMap{"name": secret.Name}
	}

	w.patchStatus(w.readObject(hypershift.NewObject(hypershift.HostedClusterKind()), w.namespace, b.Name), status)
}

// createService creates the Service of a control plane if it does not exist.
func (w *fixture) createService(p controlPlane, namespace string) {
	w.t.Helper()

	service := p.service.DeepCopy()
	service.Namespace, service.Name = namespace, hypershift.APIServerService

	if err := env.Client.Create(w.t.Context(), service); apierrors.IsAlreadyExists(err) {
		return
	} else if err != nil {
		w.t.Fatal(err)
	}

	w.t.Cleanup(func() {
		if err := client.IgnoreNotFound(env.Client.Delete(context.Background(), service)); err != nil {
			w.t.Error(err)
		}
	})

	if p.address != "" {
		service.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: p.address}}
		w.must(env.Client.Status().Update(w.t.Context(), service))
	}
}

// newBlockedControlPlane returns the state of HyperShift when it rejects a HostedCluster and therefore
// creates nothing.
func newBlockedControlPlane(condition, reason string) controlPlane {
	return controlPlane{conditions: map[string]string{
		condition: "False " + reason, "Progressing": "False Blocked", "Available": "False WaitingForAvailable",
		"Degraded": "Unknown StatusUnknown",
	}}
}

func newConditions(states map[string]string) list {
	out := list{}

	for _, name := range slices.Sorted(maps.Keys(states)) {
		status, reason, _ := strings.Cut(states[name], " ")
		out = append(out, anyMap{
			"type": name, "status": status, "reason": reason, "message": "it says " + reason,
			"lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": int64(1),
		})
	}

	return out
}

func createdRows() []row {
	const condition = v1alpha1.ConditionHostedClusterCreated

	another := func(object *unstructured.Unstructured) func(*fixture, *v1alpha1.DPFHCPBridge) {
		return func(w *fixture, b *v1alpha1.DPFHCPBridge) {
			object := object.DeepCopy()
			otherBridge := b.DeepCopy()
			otherBridge.UID = "another"

			made := hypershift.NewHostedCluster(otherBridge, "10.20.0.1")
			if object.GetKind() == "NodePool" {
				made = hypershift.NewNodePool(otherBridge, b.Spec.OCPReleaseImage)
			}

			made.SetOwnerReferences(nil)
			made.SetLabels(nil)
			w.create(made)
		}
	}

	return []row{
		{
			name: "not tried", breakState: func(w *fixture, _ *v1alpha1.DPFHCPBridge) { w.setDPUClusterStatus(anyMap{"phase": "Pending"}) },
			condition: condition, want: "Unknown NotCreated", phase: v1alpha1.PhasePending, ready: v1alpha1.ReasonValidationFailed,
		},
		{
			name: "HostedCluster of that name", breakState: another(hypershift.NewObject(hypershift.HostedClusterKind())),
			condition: condition, want: "False CreationFailed", message: "exists and does not belong to this bridge: delete it", phase: v1alpha1.PhaseFailed,
			fix: func(w *fixture, _ *v1alpha1.DPFHCPBridge) {
				w.delete(hypershift.NewObject(hypershift.HostedClusterKind()), w.namespace, "b")
				w.setDPUClusterStatus(anyMap{"phase": "Ready", "nodesCount": int64(1)}) // triggers a reconcile
			},
		},
		{
			name: "name too long for HyperShift's namespace", breakState: func(_ *fixture, b *v1alpha1.DPFHCPBridge) {
				b.Name = strings.Repeat("b", 54) // valid, but not together with the namespace
			},
			condition: condition, want: "False CreationFailed", message: "would be longer than 63 characters: create the bridge again with a shorter name",
			phase: v1alpha1.PhaseFailed,
		},
		{
			name: "NodePool of that name", breakState: another(hypershift.NewObject(hypershift.NodePoolKind())),
			condition: v1alpha1.ConditionNodePoolReady, want: "False NodePoolCreationFailed", message: "exists and does not belong to this bridge",
			phase: v1alpha1.PhaseFailed, ready: v1alpha1.ReasonWaitingForInfrastructure,
		},
		{
			name: "HyperShift rejects the image", breakState: func(_ *fixture, b *v1alpha1.DPFHCPBridge) {
				long := strings.Repeat("a/", 120) + "release" // HyperShift accepts at most 253 characters
				b.Spec.OCPReleaseImage = registryHost() + "/" + long + "@" + images.Push(long, "")
			},
			condition: condition, want: "False CreationFailed", message: "spec.release.image", phase: v1alpha1.PhaseFailed,
		},
		{
			name: "made", condition: condition, want: "True Created", phase: v1alpha1.PhaseProvisioning,
			ready: v1alpha1.ReasonWaitingForInfrastructure,
		},
	}
}

func readyRows() []row {
	play := func(change func(*controlPlane)) func(*fixture, *v1alpha1.DPFHCPBridge) {
		return func(w *fixture, b *v1alpha1.DPFHCPBridge) {
			p := newReadyControlPlane()
			change(&p)
			w.simulateHyperShift(b, p)
		}
	}
	exposed := func(address string) func(*fixture, *v1alpha1.DPFHCPBridge) {
		return func(_ *fixture, b *v1alpha1.DPFHCPBridge) {
			b.Spec.ExposeThroughLoadBalancer, b.Spec.MetalLBVirtualIP = true, address
		}
	}
	balancer := func(address string) func(*controlPlane) {
		return func(p *controlPlane) { p.service.Spec.Type, p.address = corev1.ServiceTypeLoadBalancer, address }
	}
	setCondition := func(name, status string) func(*controlPlane) {
		return func(p *controlPlane) { p.conditions[name] = status }
	}
	fix := func(w *fixture, b *v1alpha1.DPFHCPBridge) { w.simulateReadyHyperShift(b) }
	exposure, nodes, ready := v1alpha1.ConditionServiceExposureReady, v1alpha1.ConditionNodePoolReady, v1alpha1.ConditionReady
	infrastructure, control := v1alpha1.ReasonWaitingForInfrastructure, v1alpha1.ReasonWaitingForControlPlane
	provisioning, failed, invalid := v1alpha1.PhaseProvisioning, v1alpha1.PhaseFailed, v1alpha1.ReasonValidationFailed
	refused := func(condition, reason string) row {
		return row{
			name: "HyperShift says " + reason, afterCreate: func(w *fixture, b *v1alpha1.DPFHCPBridge) {
				w.simulateHyperShift(b, newBlockedControlPlane(condition, reason))
			},
			condition: ready, want: "False ValidationFailed", message: condition + ": it says " + reason, ready: invalid, phase: failed, fix: fix,
		}
	}

	return []row{
		{name: "no Service yet", condition: exposure, want: "False NodePortPending", message: "has not created Service", ready: infrastructure, phase: provisioning, fix: fix},
		{
			name: "Service of another type", afterCreate: play(func(p *controlPlane) { p.service.Spec.Type = corev1.ServiceTypeClusterIP }), condition: exposure,
			want: "False ServiceCreationFailed", message: "has type ClusterIP and must have type NodePort", ready: infrastructure, phase: provisioning,
		},
		{
			name: "no address yet", breakState: exposed("10.4.0.1"), afterCreate: play(balancer("")), condition: exposure,
			want: "False LoadBalancerPending", message: "has not assigned the address", ready: infrastructure, phase: provisioning,
		},
		{
			name: "another address", breakState: exposed("10.4.0.2"), afterCreate: play(balancer("10.9.9.9")), condition: exposure,
			want: "False LoadBalancerPending", message: "has the address 10.9.9.9 and waits for 10.4.0.2", ready: infrastructure, phase: provisioning,
		},
		{name: "at its address", breakState: exposed("10.4.0.3"), afterCreate: play(balancer("10.4.0.3")), condition: exposure, want: "True LoadBalancerReady", message: "10.4.0.3:6443", ready: "ClusterReady", phase: v1alpha1.PhaseReady},
		{name: "at a node's port", afterCreate: fix, condition: exposure, want: "True NodePortReady", message: "the API server is available at 10.20.0.1:", ready: "ClusterReady", phase: v1alpha1.PhaseReady},
		{
			name: "no conditions", afterCreate: play(func(p *controlPlane) { p.conditions = nil }), condition: ready, want: "False WaitingForControlPlane",
			message: "has not reported the state", ready: control, phase: provisioning, fix: fix,
		},
		{
			name: "not available yet", afterCreate: play(setCondition("Available", "False KubeAPIServer")), condition: ready, want: "False WaitingForControlPlane",
			message: "it says KubeAPIServer", ready: control, phase: provisioning, fix: fix,
		},
		{
			name: "degraded from the start", afterCreate: play(setCondition("Degraded", "True UnavailableReplicas")), condition: ready,
			want: "False WaitingForControlPlane", message: "parts of the control plane are not ready yet", ready: control, phase: provisioning, fix: fix,
		},
		{
			name: "being rolled out", afterCreate: play(func(p *controlPlane) { p.history = list{"Partial"} }), condition: ready, want: "False WaitingForControlPlane",
			message: "is being rolled out", ready: control, phase: provisioning, fix: fix,
		},
		refused("ValidConfiguration", "InvalidConfiguration"),
		refused("SupportedHostedCluster", "UnsupportedHostedCluster"),
		refused("ValidReleaseImage", "InvalidImage"),
		refused("Progressing", "Blocked"),
		{
			name: "HyperShift fails", afterCreate: func(w *fixture, b *v1alpha1.DPFHCPBridge) {
				w.simulateHyperShift(b, controlPlane{conditions: map[string]string{"ReconciliationSucceeded": "False ReconciliationError"}})
			},
			condition: exposure, want: "False NodePortPending", message: "yet: it says ReconciliationError", ready: infrastructure, phase: provisioning, fix: fix,
		},
		{
			name: "no kubeconfig yet", afterCreate: play(func(p *controlPlane) { p.kubeconfig = false }), condition: ready, want: "False WaitingForControlPlane",
			message: "has not written the kubeconfig", ready: control, phase: provisioning, fix: fix,
		},
		{
			name: "not available any more", afterCreate: func(w *fixture, b *v1alpha1.DPFHCPBridge) {
				w.simulateReadyHyperShift(b)
				w.waitForPhase(b, v1alpha1.PhaseReady)
				play(setCondition("Available", "False KubeAPIServer"))(w, b)
			},
			condition: ready, want: "False APIServerUnreachable", message: "no longer available", ready: "APIServerUnreachable", phase: v1alpha1.PhaseFailed, fix: fix,
		},
		{
			name: "degraded", afterCreate: func(w *fixture, b *v1alpha1.DPFHCPBridge) {
				w.simulateReadyHyperShift(b)
				w.waitForPhase(b, v1alpha1.PhaseReady)
				play(setCondition("Degraded", "True UnavailableReplicas"))(w, b)
			},
			condition: v1alpha1.ConditionHostedClusterDegraded, want: "True UnavailableReplicas", message: "it says UnavailableReplicas",
			ready: control, phase: failed, fix: fix,
		},
		{
			name: "the key of etcd's Secrets is gone", afterCreate: func(w *fixture, b *v1alpha1.DPFHCPBridge) {
				w.simulateReadyHyperShift(b)
				w.waitForPhase(b, v1alpha1.PhaseReady)
				w.releaseSecret(hypershift.EncryptionKeySecretName("b"))
				w.delete(&corev1.Secret{}, w.namespace, hypershift.EncryptionKeySecretName("b")) // it is never created again
			},
			condition: ready, want: "False ValidationFailed", message: "HyperShift has no copy in namespace ",
			ready: "ValidationFailed", phase: v1alpha1.PhaseFailed,
		},
		{
			name: "nodes are waited for", afterCreate: play(func(p *controlPlane) { p.nodes["AllMachinesReady"] = "False NotFound" }), condition: nodes,
			want: "False WaitingForNodes", message: "it says NotFound", ready: infrastructure, phase: provisioning, fix: fix,
		},
		{
			name: "nodes are not well", afterCreate: play(func(p *controlPlane) { p.nodes["AllNodesHealthy"] = "False NodeConditionsFailed" }), condition: nodes,
			want: "False NodesUnhealthy", message: "AllNodesHealthy: it says NodeConditionsFailed", ready: infrastructure, phase: provisioning, fix: fix,
		},
		{name: "nodes are ready", afterCreate: fix, condition: nodes, want: "True NodesReady", message: "0 DPUs have joined", ready: "ClusterReady", phase: v1alpha1.PhaseReady},
	}
}

// checkEveryReason checks that each documented reason has a row. The reasons of PlatformReady are tested
// by TestKindsAreInstalledLater, and Deleted by TestHostedClusterIsDeletedExternally.
func checkEveryReason(t *testing.T, rows []row) {
	t.Helper()

	tested := map[string]bool{}

	for _, row := range rows {
		_, reason, _ := strings.Cut(row.want, " ")
		tested[row.condition+" "+reason] = true
		tested[v1alpha1.ConditionReady+" "+row.ready] = true
	}

	for condition, reasons := range map[string][]string{
		v1alpha1.ConditionReady:                {"ClusterReady", "WaitingForControlPlane", "WaitingForInfrastructure", "APIServerUnreachable", "ValidationFailed"},
		v1alpha1.ConditionHostedClusterCreated: {"Created", "CreationFailed", "NotCreated"},
		v1alpha1.ConditionNodePoolReady:        {"NodesReady", "WaitingForNodes", "NodePoolCreationFailed", "NodesUnhealthy"},
		v1alpha1.ConditionDPUClusterValid:      {"Valid", "NotFound", "NotReady", "InsufficientResources", "InUse"},
		v1alpha1.ConditionServiceExposureReady: {
			"LoadBalancerReady", "NodePortReady", "LoadBalancerPending", "NodePortPending", "VIPConflict", "ServiceCreationFailed", "VIPNotInPool",
		},
		v1alpha1.ConditionSecretsValid:      {"NotFound", "KeyMissing", "InvalidData"},
		v1alpha1.ConditionStorageClassValid: {"NotFound", "NotDynamic"},
		v1alpha1.ConditionReleaseImageValid: {"Valid", "ImageNotFound", "ImageUnauthorized", "RegistryUnreachable", "VersionNotSupported"},
	} {
		for _, reason := range reasons {
			if !tested[condition+" "+reason] {
				t.Errorf("no row has %s %s", condition, reason)
			}
		}
	}
}
