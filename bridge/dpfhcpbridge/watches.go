// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package dpfhcpbridge

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
	"github.com/hyperfleet/hyperfleet/bridge/hypershift"
	"github.com/hyperfleet/hyperfleet/kit/objects"
	"github.com/hyperfleet/hyperfleet/kit/trigger"
)

// watches is what is needed to add watches to the running controller.
type watches struct {
	manager    ctrl.Manager
	controller controller.Controller
	// kinds are bridges to look at since kinds have come.
	kinds trigger.Source
}

// SetupWithManager adds the controller to a manager, with the watches of kinds that are
// always there. Open adds those of other projects.
func (r *Reconciler) SetupWithManager(ctx context.Context, mgr ctrl.Manager) error {
	if err := addIndexes(ctx, mgr.GetFieldIndexer()); err != nil {
		return err
	}

	mine, err := ctrl.NewControllerManagedBy(mgr).
		Named("dpfhcpbridge").
		For(&v1alpha1.DPFHCPBridge{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&v1alpha1.DPFHCPBridge{}, handler.EnqueueRequestsFromMapFunc(r.rivals), builder.WithPredicates(goes())).
		WatchesMetadata(&corev1.Secret{}, handler.EnqueueRequestsFromMapFunc(r.ofSecret), builder.WithPredicates(foreignOrChanged())).
		WatchesMetadata(&corev1.Secret{}, soon(r.ofClusterSecret, nothing)).
		Watches(&storagev1.StorageClass{}, handler.EnqueueRequestsFromMapFunc(r.ofStorageClass)).
		Watches(&corev1.Service{}, within(settle, r.ofService), builder.WithPredicates(serviceNews())).
		WatchesRawSource(&r.watch.kinds).
		WithOptions(controller.Options{MaxConcurrentReconciles: r.Concurrency, ReconciliationTimeout: passTimeout}).
		Build(r)
	if err != nil {
		return fmt.Errorf("add controller dpfhcpbridge: %w", err)
	}

	r.watch.manager, r.watch.controller = mgr, mine

	return nil
}

// OpenDPF watches DPUClusters and DPUFlavors, whose kinds are there.
func (r *Reconciler) OpenDPF(ctx context.Context) error {
	if err := r.follow(hypershift.DPUClusterKind(), atOnce(r.ofDPUCluster), dpuClusterNews()); err != nil {
		return err
	}

	if err := r.follow(hypershift.DPUFlavorKind(), atOnce(r.ofFlavor), predicate.GenerationChangedPredicate{}); err != nil {
		return err
	}

	r.installed.dpf.Store(true)

	return r.enqueueAll(ctx)
}

// OpenHyperShift watches HostedClusters and NodePools, whose kinds are there.
func (r *Reconciler) OpenHyperShift(ctx context.Context) error {
	if err := r.follow(hypershift.HostedClusterKind(), soon(ofOwned, hostedClusterDecides), hostedClusterNews()); err != nil {
		return err
	}

	if err := r.follow(hypershift.NodePoolKind(), soon(ofOwned, nodePoolDecides), nodePoolNews()); err != nil {
		return err
	}

	if err := r.follow(hypershift.NodePoolKind(), soon(r.ofIgnition, nothing), userDataNews()); err != nil {
		return err
	}

	r.installed.hyperShift.Store(true)

	return r.enqueueAll(ctx)
}

// OpenMetalLB watches pools and announcements, whose kinds are there.
func (r *Reconciler) OpenMetalLB(ctx context.Context) error {
	if err := addPoolIndex(ctx, r.watch.manager.GetFieldIndexer()); err != nil {
		return err
	}

	if err := r.follow(hypershift.IPAddressPoolKind(), atOnce(r.ofPool), foreignOrChanged()); err != nil {
		return err
	}

	if err := r.follow(hypershift.L2AdvertisementKind(), atOnce(ofLabels), foreignOrChanged()); err != nil {
		return err
	}

	r.installed.metalLB.Store(true)

	return r.enqueueAll(ctx)
}

func (r *Reconciler) follow(kind schema.GroupVersionKind, to handler.EventHandler, news predicate.Predicate) error {
	from := source.Kind(r.watch.manager.GetCache(), client.Object(hypershift.New(kind)), to, news)
	if err := r.watch.controller.Watch(from); err != nil {
		return fmt.Errorf("watch kind %s: %w", kind.Kind, err)
	}

	return nil
}

// enqueueAll asks for a pass over all bridges: once, when kinds have come that some of them
// wait for.
func (r *Reconciler) enqueueAll(ctx context.Context) error {
	if !r.watch.kinds.Started() {
		return nil
	}

	var bridges v1alpha1.DPFHCPBridgeList
	if err := r.Client.List(ctx, &bridges); err != nil {
		return fmt.Errorf("list bridges: %w", err)
	}

	for i := range bridges.Items {
		r.watch.kinds.Enqueue(client.ObjectKeyFromObject(&bridges.Items[i]))
	}

	return nil
}

// by gives the bridges with a value of an index.
func (r *Reconciler) by(ctx context.Context, index, value string) []reconcile.Request {
	return objects.Requests[*v1alpha1.DPFHCPBridge](ctx, r.Client, &v1alpha1.DPFHCPBridgeList{}, nil,
		client.MatchingFields{index: value})
}

// rivals are the bridges that wait for what another had: its DPUCluster, its address.
func (r *Reconciler) rivals(ctx context.Context, obj client.Object) []reconcile.Request {
	bridge, is := obj.(*v1alpha1.DPFHCPBridge)
	if !is {
		return nil
	}

	out := r.by(ctx, indexDPUCluster, dpuClusterKey(bridge).String())
	for _, ip := range hypershift.VirtualIPs(bridge) {
		out = append(out, r.by(ctx, indexAddress, ip)...)
	}

	return out
}

func (r *Reconciler) ofDPUCluster(ctx context.Context, obj client.Object) []reconcile.Request {
	return r.by(ctx, indexDPUCluster, client.ObjectKeyFromObject(obj).String())
}

func (r *Reconciler) ofFlavor(ctx context.Context, obj client.Object) []reconcile.Request {
	return r.by(ctx, indexFlavor, client.ObjectKeyFromObject(obj).String())
}

func (r *Reconciler) ofStorageClass(ctx context.Context, obj client.Object) []reconcile.Request {
	return r.by(ctx, indexStorageClass, obj.GetName())
}

// ofSecret are the bridges that name a Secret, and the one that has made it.
func (r *Reconciler) ofSecret(ctx context.Context, obj client.Object) []reconcile.Request {
	return append(ofLabels(ctx, obj), r.by(ctx, indexSecret, client.ObjectKeyFromObject(obj).String())...)
}

// ofIgnition is the bridge whose DPUs boot with what a NodePool is configured as.
func (r *Reconciler) ofIgnition(ctx context.Context, obj client.Object) []reconcile.Request {
	return r.by(ctx, indexIgnition, hypershift.ControlPlaneNamespace(obj.GetNamespace(), obj.GetName()))
}

// ofClusterSecret is the bridge whose kubeconfig a Secret of HyperShift's is, or whose DPUs
// boot with it.
func (r *Reconciler) ofClusterSecret(ctx context.Context, obj client.Object) []reconcile.Request {
	var out []reconcile.Request

	if hypershift.IsUserData(obj.GetName()) {
		out = r.by(ctx, indexIgnition, obj.GetNamespace())
	}

	if name, is := strings.CutSuffix(obj.GetName(), "-admin-kubeconfig"); is {
		namespace := hypershift.ControlPlaneNamespace(obj.GetNamespace(), name)
		for _, request := range r.by(ctx, indexControlPlane, namespace) {
			if request.Namespace == obj.GetNamespace() {
				out = append(out, request)
			}
		}
	}

	return out
}

// ofService is the bridge whose API server's Service it is, and those whose address it has
// or had.
func (r *Reconciler) ofService(ctx context.Context, obj client.Object) []reconcile.Request {
	var out []reconcile.Request
	if obj.GetName() == hypershift.APIServerService {
		out = r.by(ctx, indexControlPlane, obj.GetNamespace())
	}

	for _, ip := range addressesOfService(obj) {
		out = append(out, r.by(ctx, indexAddress, ip)...)
	}

	return out
}

// ofPool is the bridge whose own pool it is, and those whose address no pool had.
func (r *Reconciler) ofPool(ctx context.Context, obj client.Object) []reconcile.Request {
	if own := ofLabels(ctx, obj); len(own) > 0 {
		return own
	}

	return r.by(ctx, indexWantsPool, "true")
}

// ofOwned is the bridge that an object belongs to by its owner reference.
func ofOwned(_ context.Context, obj client.Object) []reconcile.Request {
	owner := metav1.GetControllerOf(obj)
	if owner == nil || owner.Kind != "DPFHCPBridge" || !strings.HasPrefix(owner.APIVersion, v1alpha1.GroupVersion.Group+"/") {
		return nil
	}

	return []reconcile.Request{{NamespacedName: client.ObjectKey{Namespace: obj.GetNamespace(), Name: owner.Name}}}
}

// ofLabels is the bridge that an object belongs to by its labels.
func ofLabels(_ context.Context, obj client.Object) []reconcile.Request {
	labels := obj.GetLabels()
	if labels[hypershift.LabelName] == "" || labels[hypershift.LabelNamespace] == "" {
		return nil
	}

	return []reconcile.Request{{NamespacedName: client.ObjectKey{
		Namespace: labels[hypershift.LabelNamespace], Name: labels[hypershift.LabelName],
	}}}
}
