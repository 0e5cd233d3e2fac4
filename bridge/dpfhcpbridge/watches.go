// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package dpfhcpbridge

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"

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

	"github.com/hyperfleet/hyperfleet/kit/watch"
)

// installedProjects holds which projects' kinds are installed and watched.
type installedProjects struct{ hyperShift, metalLB, dpf atomic.Bool }

// dynamicWatches holds what is needed to add watches to the running controller.
type dynamicWatches struct {
	manager    ctrl.Manager
	controller controller.Controller
	// installEvents enqueues bridges after another project's kinds were installed.
	installEvents watch.Source
}

// SetupWithManager adds the controller to a manager, with the watches of kinds that are always
// installed. WatchDPF, WatchHyperShift and WatchMetalLB add the watches of other projects.
func (r *Reconciler) SetupWithManager(ctx context.Context, mgr ctrl.Manager) error {
	if err := addIndexes(ctx, mgr.GetFieldIndexer()); err != nil {
		return err
	}

	bridgeController, err := ctrl.NewControllerManagedBy(mgr).
		Named("dpfhcpbridge").
		For(&v1alpha1.DPFHCPBridge{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&v1alpha1.DPFHCPBridge{}, newHandler(r.findRivals), builder.WithPredicates(newReleasedPredicate())).
		WatchesMetadata(&corev1.Secret{}, newHandler(r.findBridgesOfSecret), builder.WithPredicates(newIgnoreOwnCreationsPredicate())).
		WatchesMetadata(&corev1.Secret{}, newUpdateHandler(r.findBridgesOfClusterSecret, readNothing)).
		Watches(&storagev1.StorageClass{}, newHandler(r.findBridgesOfStorageClass)).
		Watches(
			&corev1.Service{}, newDelayedHandler(settleDelay, r.findBridgesOfService), builder.WithPredicates(newServicePredicate()),
		).
		WatchesRawSource(&r.watches.installEvents).
		WithOptions(controller.Options{MaxConcurrentReconciles: r.Concurrency, ReconciliationTimeout: reconcileTimeout}).
		Build(r)
	if err != nil {
		return fmt.Errorf("add controller dpfhcpbridge: %w", err)
	}

	r.watches.manager, r.watches.controller = mgr, bridgeController

	return nil
}

// WatchDPF watches DPUClusters and DPUFlavors. Their CRDs must be installed.
func (r *Reconciler) WatchDPF(ctx context.Context) error {
	if err := r.addWatch(hypershift.DPUClusterKind(), newHandler(r.findBridgesOfDPUCluster), newDPUClusterPredicate()); err != nil {
		return err
	}

	err := r.addWatch(hypershift.DPUFlavorKind(), newHandler(r.findBridgesOfFlavor), predicate.GenerationChangedPredicate{})
	if err != nil {
		return err
	}

	r.installed.dpf.Store(true)

	return r.enqueueAll(ctx)
}

// WatchHyperShift watches HostedClusters and NodePools. Their CRDs must be installed.
func (r *Reconciler) WatchHyperShift(ctx context.Context) error {
	clusterHandler := newUpdateHandler(findControllingBridge, readHostedClusterProgress)
	if err := r.addWatch(hypershift.HostedClusterKind(), clusterHandler, newHostedClusterPredicate()); err != nil {
		return err
	}

	poolHandler := newUpdateHandler(findControllingBridge, readNodePoolProgress)
	if err := r.addWatch(hypershift.NodePoolKind(), poolHandler, newNodePoolPredicate()); err != nil {
		return err
	}

	userDataHandler := newUpdateHandler(r.findBridgesOfNodePool, readNothing)
	if err := r.addWatch(hypershift.NodePoolKind(), userDataHandler, newUserDataPredicate()); err != nil {
		return err
	}

	r.installed.hyperShift.Store(true)

	return r.enqueueAll(ctx)
}

// WatchMetalLB watches IPAddressPools and L2Advertisements. Their CRDs must be installed.
func (r *Reconciler) WatchMetalLB(ctx context.Context) error {
	if err := addPoolIndex(ctx, r.watches.manager.GetFieldIndexer()); err != nil {
		return err
	}

	poolHandler, advertisementHandler := newHandler(r.findBridgesOfPool), newHandler(findLabeledBridge)
	if err := r.addWatch(hypershift.IPAddressPoolKind(), poolHandler, newIgnoreOwnCreationsPredicate()); err != nil {
		return err
	}

	if err := r.addWatch(hypershift.L2AdvertisementKind(), advertisementHandler, newIgnoreOwnCreationsPredicate()); err != nil {
		return err
	}

	r.installed.metalLB.Store(true)

	return r.enqueueAll(ctx)
}

func (r *Reconciler) addWatch(kind schema.GroupVersionKind, eventHandler handler.EventHandler, filter predicate.Predicate) error {
	kindSource := source.Kind(r.watches.manager.GetCache(), client.Object(hypershift.NewObject(kind)), eventHandler, filter)
	if err := r.watches.controller.Watch(kindSource); err != nil {
		return fmt.Errorf("watch kind %s: %w", kind.Kind, err)
	}

	return nil
}

// enqueueAll enqueues all bridges once after another project's kinds were installed, because some
// bridges may wait for them. Before the controller has started it does nothing, because the controller
// reconciles all bridges at its start.
func (r *Reconciler) enqueueAll(ctx context.Context) error {
	if !r.watches.installEvents.IsStarted() {
		return nil
	}

	var bridges v1alpha1.DPFHCPBridgeList
	if err := r.Client.List(ctx, &bridges); err != nil {
		return fmt.Errorf("list bridges: %w", err)
	}

	for i := range bridges.Items {
		r.watches.installEvents.Enqueue(client.ObjectKeyFromObject(&bridges.Items[i]))
	}

	return nil
}

// findBridges returns requests for the bridges with a value in an index.
func (r *Reconciler) findBridges(ctx context.Context, index, value string) []reconcile.Request {
	return watch.ListRequests[*v1alpha1.DPFHCPBridge](ctx, r.Client, &v1alpha1.DPFHCPBridgeList{}, nil,
		client.MatchingFields{index: value})
}

// findRivals returns requests for the bridges that use the same DPUCluster or one of the same addresses
// as a bridge, and may wait for that bridge to release them.
func (r *Reconciler) findRivals(ctx context.Context, obj client.Object) []reconcile.Request {
	bridge, ok := obj.(*v1alpha1.DPFHCPBridge)
	if !ok {
		return nil
	}

	out := r.findBridges(ctx, indexDPUCluster, dpuClusterKey(bridge).String())
	for _, ip := range hypershift.VirtualIPs(bridge) {
		out = append(out, r.findBridges(ctx, indexAddress, ip)...)
	}

	return out
}

func (r *Reconciler) findBridgesOfDPUCluster(ctx context.Context, obj client.Object) []reconcile.Request {
	return r.findBridges(ctx, indexDPUCluster, client.ObjectKeyFromObject(obj).String())
}

func (r *Reconciler) findBridgesOfFlavor(ctx context.Context, obj client.Object) []reconcile.Request {
	return r.findBridges(ctx, indexFlavor, client.ObjectKeyFromObject(obj).String())
}

func (r *Reconciler) findBridgesOfStorageClass(ctx context.Context, obj client.Object) []reconcile.Request {
	return r.findBridges(ctx, indexStorageClass, obj.GetName())
}

// findBridgesOfSecret returns requests for the bridges that name a Secret and for the bridge that has
// created it.
func (r *Reconciler) findBridgesOfSecret(ctx context.Context, obj client.Object) []reconcile.Request {
	return append(findLabeledBridge(ctx, obj), r.findBridges(ctx, indexSecret, client.ObjectKeyFromObject(obj).String())...)
}

// findBridgesOfNodePool returns requests for the bridges whose DPUs boot with the configuration of a
// NodePool.
func (r *Reconciler) findBridgesOfNodePool(ctx context.Context, obj client.Object) []reconcile.Request {
	return r.findBridges(ctx, indexIgnition, hypershift.ControlPlaneNamespace(obj.GetNamespace(), obj.GetName()))
}

// findBridgesOfClusterSecret returns requests for the bridges whose kubeconfig or user data a Secret of
// HyperShift holds.
func (r *Reconciler) findBridgesOfClusterSecret(ctx context.Context, obj client.Object) []reconcile.Request {
	var out []reconcile.Request

	if hypershift.IsUserDataSecret(obj.GetName()) {
		out = r.findBridges(ctx, indexIgnition, obj.GetNamespace())
	}

	if name, ok := strings.CutSuffix(obj.GetName(), "-admin-kubeconfig"); ok {
		namespace := hypershift.ControlPlaneNamespace(obj.GetNamespace(), name)
		for _, request := range r.findBridges(ctx, indexControlPlane, namespace) {
			if request.Namespace == obj.GetNamespace() {
				out = append(out, request)
			}
		}
	}

	return out
}

// findBridgesOfService returns requests for the bridge whose API server a Service exposes, and for the
// bridges with one of the addresses that the Service has or requests.
func (r *Reconciler) findBridgesOfService(ctx context.Context, obj client.Object) []reconcile.Request {
	var out []reconcile.Request
	if obj.GetName() == hypershift.APIServerService {
		out = r.findBridges(ctx, indexControlPlane, obj.GetNamespace())
	}

	for _, ip := range serviceAddresses(obj) {
		out = append(out, r.findBridges(ctx, indexAddress, ip)...)
	}

	return out
}

// findBridgesOfPool returns a request for the bridge that owns an IPAddressPool. If no bridge owns the
// pool, it returns requests for all bridges that wait for a pool, because this pool may contain the address
// of one of them.
func (r *Reconciler) findBridgesOfPool(ctx context.Context, obj client.Object) []reconcile.Request {
	if own := findLabeledBridge(ctx, obj); len(own) > 0 {
		return own
	}

	return r.findBridges(ctx, indexMissingPool, "true")
}

// findControllingBridge returns a request for the bridge that controls an object by its owner reference.
func findControllingBridge(_ context.Context, obj client.Object) []reconcile.Request {
	owner := metav1.GetControllerOf(obj)
	if owner == nil || owner.Kind != kindBridge || !strings.HasPrefix(owner.APIVersion, v1alpha1.GroupVersion.Group+"/") {
		return nil
	}

	return []reconcile.Request{{NamespacedName: client.ObjectKey{Namespace: obj.GetNamespace(), Name: owner.Name}}}
}

// findLabeledBridge returns a request for the bridge that has created an object, by the labels of the object.
func findLabeledBridge(_ context.Context, obj client.Object) []reconcile.Request {
	labels := obj.GetLabels()
	if labels[hypershift.LabelName] == "" || labels[hypershift.LabelNamespace] == "" {
		return nil
	}

	return []reconcile.Request{{NamespacedName: client.ObjectKey{
		Namespace: labels[hypershift.LabelNamespace], Name: labels[hypershift.LabelName],
	}}}
}
