// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package dpfhcpbridge

import (
	"context"
	"fmt"
	"time"

	"go4.org/netipx"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
	"github.com/hyperfleet/hyperfleet/bridge/credentials"
	"github.com/hyperfleet/hyperfleet/bridge/hypershift"
	"github.com/hyperfleet/hyperfleet/bridge/ignition"
	"github.com/hyperfleet/hyperfleet/kit/keep"
	"github.com/hyperfleet/hyperfleet/kit/step"
)

const (
	// reconcileTimeout bounds one reconcile of one bridge.
	reconcileTimeout = 2 * time.Minute
	// resyncInterval is the time until the next reconcile if an event normally triggers it.
	resyncInterval = 5 * time.Minute
	// pollInterval is the time until the next reconcile while objects are being deleted, and if no event
	// triggers it.
	pollInterval = 30 * time.Second
	// fieldOwner is the field manager of the objects that the controller writes.
	fieldOwner = "hyperfleet-bridge"
)

// ImageChecker checks that a release image exists and that the logins may read it. Its errors have a
// class and a reason of ReleaseImageValid.
type ImageChecker interface {
	Check(ctx context.Context, image string, logins credentials.DockerConfig, secretVersion string) error
}

// IgnitionFetcher fetches the ignition of workers from HyperShift's ignition server.
type IgnitionFetcher interface {
	Fetch(ctx context.Context, source ignition.Source) ([]byte, error)
}

// Reconciler reconciles DPFHCPBridges.
type Reconciler struct {
	Client client.Client
	// Cache reads the watched objects of other projects.
	Cache client.Reader
	// APIReader reads from the API server directly.
	APIReader client.Reader
	Runner    *step.Reconciler
	Recorder  events.EventRecorder
	Clock     clock.WithTicker
	Images    ImageChecker
	Ignition  IgnitionFetcher
	// Keeper keeps the Secrets that HyperShift needs until the HostedCluster is deleted.
	Keeper *keep.Keeper
	// HyperShiftNamespace and MetalLBNamespace are the namespaces in which these operators run.
	HyperShiftNamespace, MetalLBNamespace string
	// Ranges are the address ranges for which the controller may create IPAddressPools.
	Ranges []netipx.IPRange
	// Concurrency is how many bridges are reconciled at a time.
	Concurrency int

	// installed holds which projects' kinds are installed and watched.
	installed installedProjects
	watches   dynamicWatches
}

//+kubebuilder:rbac:groups=dpf.hcp.bridge.com,resources=dpfhcpbridges,verbs=list;watch;patch
//+kubebuilder:rbac:groups=dpf.hcp.bridge.com,resources=dpfhcpbridges/status,verbs=patch
//+kubebuilder:rbac:groups=dpf.hcp.bridge.com,resources=dpfhcpbridges/finalizers,verbs=update
//+kubebuilder:rbac:groups=hypershift.openshift.io,resources=hostedclusters,verbs=get;list;watch;create;patch;delete
//+kubebuilder:rbac:groups=hypershift.openshift.io,resources=nodepools,verbs=get;list;watch;create;patch;delete
//+kubebuilder:rbac:groups=metallb.io,resources=ipaddresspools,verbs=get;list;watch;create;patch;delete
//+kubebuilder:rbac:groups=metallb.io,resources=l2advertisements,verbs=get;list;watch;create;patch;delete
//+kubebuilder:rbac:groups=provisioning.dpu.nvidia.com,resources=dpuclusters,verbs=list;watch;patch
//+kubebuilder:rbac:groups=provisioning.dpu.nvidia.com,resources=dpuflavors,verbs=list;watch
//+kubebuilder:rbac:groups="",resources=secrets,verbs=get;list;watch;create;update;patch;delete
//+kubebuilder:rbac:groups="",resources=services,verbs=list;watch;patch
//+kubebuilder:rbac:groups="",resources=nodes,verbs=list;watch
//+kubebuilder:rbac:groups="",resources=configmaps,verbs=get;create;update;delete
//+kubebuilder:rbac:groups=storage.k8s.io,resources=storageclasses,verbs=list;watch
//+kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// scope is the state of one reconcile of one bridge.
type scope struct {
	*Reconciler

	bridge *v1alpha1.DPFHCPBridge
	// hostedCluster is the bridge's HostedCluster. It is nil if there is none.
	hostedCluster *unstructured.Unstructured
	// dpuCluster is set by validateDPUCluster.
	dpuCluster hypershift.DPUCluster
	// secrets is set by validateSecrets.
	secrets secretData
	// encryptionKey is the Secret with the key of the HostedCluster. reconcileKeys sets it.
	encryptionKey *corev1.Secret
	// pool is the name of the IPAddressPool that has the addresses and does not belong to the bridge. It
	// is empty if there is none. checkAddresses sets it.
	pool string
	// service is the Service of the API server, and nil if it does not exist. checkServiceExposure sets
	// it.
	service *corev1.Service
	// kubeconfig is the kubeconfig of the hosted cluster. readKubeconfig sets it.
	kubeconfig []byte
	// keepError is the error of the Keeper.
	keepError error
}

func newPlan() step.Plan[*scope] {
	isExposed := func(s *scope) bool { return s.bridge.Spec.ExposeThroughLoadBalancer }

	return step.Plan[*scope]{
		Finalizer: v1alpha1.Finalizer,
		Steps: []step.Step[*scope]{
			{Name: "HostedClusterMirrored", Run: mirrorHostedClusterConditions},
			{Condition: v1alpha1.ConditionPlatformReady, Run: checkPlatform},
			{Condition: v1alpha1.ConditionDPUClusterValid, Run: validateDPUCluster},
			{Condition: v1alpha1.ConditionSecretsValid, Run: validateSecrets},
			{Condition: v1alpha1.ConditionStorageClassValid, Run: validateStorageClass},
			{Condition: v1alpha1.ConditionReleaseImageValid, Run: validateReleaseImage},
			{Name: "SecretsKept", Run: reportSecrets},                        // before the HostedCluster exists
			{Name: "AddressFree", AppliesTo: isExposed, Run: checkAddresses}, // the steps above come before any creation
			{Name: "KeysCreated", Run: reconcileKeys},
			{Name: "AddressPoolCreated", AppliesTo: isExposed, Run: reconcileAddressPool},
			{Condition: v1alpha1.ConditionHostedClusterCreated, Run: reconcileHostedCluster},
			{Name: "HostedClusterAccepted", Run: checkHostedClusterAccepted},
			{Name: "NodePoolCreated", Run: reconcileNodePool},
			{Condition: v1alpha1.ConditionServiceExposureReady, Run: withProvisioningTimeout(checkServiceExposure)},
			{Name: "ControlPlaneReady", Run: withProvisioningTimeout(checkControlPlane)},
			{Name: "KubeconfigReady", Run: withProvisioningTimeout(readKubeconfig)},
			{Name: "KubeconfigPublished", Run: publishKubeconfig}, // from here on, DPUs can join
			{Condition: v1alpha1.ConditionIgnitionConfigured, AppliesTo: hasIgnition, Run: withProvisioningTimeout(reconcileIgnition)},
			{Condition: v1alpha1.ConditionNodePoolReady, Run: withProvisioningTimeout(checkNodePool)},
		},
		DeletionSteps: []step.Step[*scope]{
			{Name: "HostedClusterDeleted", Run: deleteHostedCluster},
			{Name: "NodePoolDeleted", Run: deleteNodePool},
			{Name: "KubeconfigDeleted", Run: deletePublishedKubeconfig},
			{Name: "IgnitionDeleted", AppliesTo: hasIgnition, Run: deleteIgnitionTemplate},
			{Name: "AddressPoolDeleted", Run: deleteAddressPool},
			{Name: "SecretsReleased", Run: releaseSecrets}, // the HostedCluster is gone
			{Name: "KeysDeleted", Run: deleteKeys},         // last, because the objects above need the keys
		},
	}
}

// Conditions returns the condition types of the steps, in the order of the steps. A step without a
// condition has an empty string.
func Conditions() []string {
	steps := newPlan().Steps
	out := make([]string, 0, len(steps))

	for _, s := range steps {
		out = append(out, s.Condition)
	}

	return out
}

// Reconcile reconciles one bridge.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var bridge v1alpha1.DPFHCPBridge
	if err := r.Client.Get(ctx, req.NamespacedName, &bridge); err != nil {
		if apierrors.IsNotFound(err) {
			return reconcile.Result{}, nil
		}

		return reconcile.Result{}, fmt.Errorf("get bridge: %w", err)
	}

	s := &scope{Reconciler: r, bridge: &bridge}
	if err := s.loadHostedCluster(ctx); err != nil {
		return reconcile.Result{}, err
	}

	if bridge.DeletionTimestamp.IsZero() {
		// Without its own finalizer, the bridge could disappear and leave a Secret with a finalizer.
		if err := step.EnsureFinalizer(ctx, r.Runner, &bridge, v1alpha1.Finalizer); err != nil {
			return reconcile.Result{}, err
		}

		s.keepError = s.keepSecrets(ctx)
	}

	before := bridge.DeepCopy()
	if bridge.Status.ObservedGeneration != bridge.Generation {
		bridge.Status.ProvisioningSince = nil // a new spec starts a new provisioning timeout
	}

	result, err := step.Reconcile(ctx, r.Runner, &bridge, newPlan(), s)
	s.recordEvents(before)

	return result, err
}

// loadHostedCluster reads the bridge's HostedCluster if HyperShift is installed. If the cache does not
// have a HostedCluster that the status names, loadHostedCluster reads from the API server.
func (s *scope) loadHostedCluster(ctx context.Context) error {
	if !s.installed.hyperShift.Load() {
		return nil
	}

	var err error

	s.hostedCluster, err = s.getObject(ctx, s.Cache, hypershift.HostedClusterKind(), client.ObjectKeyFromObject(s.bridge))
	if err == nil && s.hostedCluster == nil && s.bridge.Status.HostedClusterRef != nil {
		s.hostedCluster, err = s.getObject(ctx, s.APIReader, hypershift.HostedClusterKind(), client.ObjectKeyFromObject(s.bridge))
	}

	if s.hostedCluster != nil && !s.isOwn(s.hostedCluster) {
		s.hostedCluster = nil // reconcileHostedCluster reports the conflict
	}

	return err
}

// hasCreatedHostedCluster returns whether the bridge has created a HostedCluster, even if the
// HostedCluster no longer exists.
func (s *scope) hasCreatedHostedCluster() bool {
	return s.hostedCluster != nil || s.bridge.Status.HostedClusterRef != nil ||
		s.encryptionKey != nil && s.encryptionKey.Annotations[annotationCreated] != ""
}
