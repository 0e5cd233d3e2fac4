// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package dpfhcpbridge

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
	"github.com/hyperfleet/hyperfleet/bridge/address"
	"github.com/hyperfleet/hyperfleet/bridge/credentials"
	"github.com/hyperfleet/hyperfleet/bridge/hypershift"
	"github.com/hyperfleet/hyperfleet/bridge/ignition"
	"github.com/hyperfleet/hyperfleet/kit/step"
)

const (
	// passTimeout bounds one pass over one bridge.
	passTimeout = 2 * time.Minute
	// lookAgain is when something that events tell of is looked at without one.
	lookAgain = 5 * time.Minute
	// lookSoon is the same of what is going, and of what no event tells of.
	lookSoon = 30 * time.Second
	// fieldOwner names the bridge in the objects that it writes.
	fieldOwner = "hyperfleet-bridge"
)

// Images says whether a release image is there and may be read. Its errors have a class
// and a reason of ReleaseImageValid.
type Images interface {
	Check(ctx context.Context, image string, logins credentials.Docker, version string) error
}

// Ignition asks HyperShift's servers for what workers are configured with.
type Ignition interface {
	Fetch(ctx context.Context, from ignition.Source) ([]byte, error)
}

// Reconciler reconciles DPFHCPBridges.
type Reconciler struct {
	Client client.Client
	// Cache reads objects of other projects that are watched.
	Cache client.Reader
	// Live reads from the API server itself.
	Live     client.Reader
	Runner   *step.Runner
	Recorder events.EventRecorder
	Clock    clock.WithTicker
	Images   Images
	Ignition Ignition
	// HyperShiftNamespace and MetalLBNamespace are where these run.
	HyperShiftNamespace, MetalLBNamespace string
	// Ranges out of which pools may be made.
	Ranges []address.Range
	// Concurrency is how many bridges are worked on at a time.
	Concurrency int

	// Installed says which projects' kinds are there, and watched.
	installed installed
	watch     watches
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
//+kubebuilder:rbac:groups="",resources=secrets,verbs=get;list;watch;create;update;delete
//+kubebuilder:rbac:groups="",resources=services,verbs=list;watch;patch
//+kubebuilder:rbac:groups="",resources=nodes,verbs=list;watch
//+kubebuilder:rbac:groups="",resources=configmaps,verbs=get;create;update;delete
//+kubebuilder:rbac:groups=storage.k8s.io,resources=storageclasses,verbs=list;watch
//+kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// scope is one pass over one bridge.
type scope struct {
	*Reconciler

	bridge *v1alpha1.DPFHCPBridge
	// cluster is the bridge's HostedCluster, nil where there is none.
	cluster *unstructured.Unstructured
	// dpus is filled by dpuCluster.
	dpus hypershift.DPUCluster
	// secrets is filled by secrets.
	secrets secrets
	// pool that has the address and is not the bridge's own; empty where there is none.
	// Filled by addressFree.
	pool string
	// service is the API server's, filled by exposed; nil where there is none.
	service *corev1.Service
	// kubeconfig of the hosted cluster, filled by kubeconfigThere.
	kubeconfig []byte
}

func plan() step.Plan[*scope] {
	exposed := func(s *scope) bool { return s.bridge.Spec.ExposeThroughLoadBalancer }

	return step.Plan[*scope]{
		Finalizer: v1alpha1.Finalizer,
		Steps: []step.Step[*scope]{
			{Name: "HostedClusterSeen", Run: hostedClusterSeen},
			{Condition: v1alpha1.ConditionPlatformReady, Run: platformThere},
			{Condition: v1alpha1.ConditionDPUClusterValid, Run: dpuClusterValid},
			{Condition: v1alpha1.ConditionSecretsValid, Run: secretsValid},
			{Condition: v1alpha1.ConditionStorageClassValid, Run: storageClassValid},
			{Condition: v1alpha1.ConditionReleaseImageValid, Run: releaseImageValid},
			{Name: "AddressFree", When: exposed, Run: addressFree}, // nothing is made before all of these are done
			{Name: "KeysCreated", Run: keysMade},
			{Name: "AddressPoolCreated", When: exposed, Run: poolMade},
			{Condition: v1alpha1.ConditionHostedClusterCreated, Run: hostedClusterMade},
			{Name: "HostedClusterAccepted", Run: hostedClusterAccepted},
			{Name: "NodePoolCreated", Run: nodePoolMade},
			{Condition: v1alpha1.ConditionServiceExposureReady, Run: inTime(exposedReady)},
			{Name: "ControlPlaneReady", Run: inTime(controlPlaneReady)},
			{Name: "KubeconfigReady", Run: inTime(kubeconfigThere)},
			{Name: "KubeconfigHandedOver", Run: kubeconfigHandedOver}, // DPUs can join
			{Condition: v1alpha1.ConditionIgnitionConfigured, When: ignites, Run: inTime(ignitionConfigured)},
			{Condition: v1alpha1.ConditionNodePoolReady, Run: inTime(nodePoolReady)},
		},
		Deletion: []step.Step[*scope]{
			{Name: "HostedClusterDeleted", Run: hostedClusterGone},
			{Name: "NodePoolDeleted", Run: nodePoolGone},
			{Name: "KubeconfigDeleted", Run: handedOverGone},
			{Name: "IgnitionDeleted", When: ignites, Run: ignitionGone},
			{Name: "AddressPoolDeleted", Run: poolGone},
			{Name: "KeysDeleted", Run: keysGone}, // only now is there nothing that needs them
		},
	}
}

// Conditions are those of the steps, in their order: empty where a step has none.
func Conditions() []string {
	steps := plan().Steps
	out := make([]string, 0, len(steps))

	for _, s := range steps {
		out = append(out, s.Condition)
	}

	return out
}

// Reconcile looks at one bridge.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var bridge v1alpha1.DPFHCPBridge
	if err := r.Client.Get(ctx, req.NamespacedName, &bridge); err != nil {
		if apierrors.IsNotFound(err) {
			return reconcile.Result{}, nil
		}

		return reconcile.Result{}, fmt.Errorf("get bridge: %w", err)
	}

	s := &scope{Reconciler: r, bridge: &bridge}
	if err := s.look(ctx); err != nil {
		return reconcile.Result{}, err
	}

	before := bridge.DeepCopy()
	if bridge.Status.ObservedGeneration != bridge.Generation {
		bridge.Status.ProvisioningSince = nil // another spec has its own time
	}

	result, err := step.Pass(ctx, r.Runner, &bridge, plan(), s)
	s.announce(before)

	return result, err
}

// look reads the bridge's HostedCluster, where HyperShift is. The cache may not have one
// yet that the status knows of: then the API server is asked.
func (s *scope) look(ctx context.Context) error {
	if !s.installed.hyperShift.Load() {
		return nil
	}

	var err error

	s.cluster, err = s.read(ctx, s.Cache, hypershift.HostedClusterKind(), client.ObjectKeyFromObject(s.bridge))
	if err == nil && s.cluster == nil && s.bridge.Status.HostedClusterRef != nil {
		s.cluster, err = s.read(ctx, s.Live, hypershift.HostedClusterKind(), client.ObjectKeyFromObject(s.bridge))
	}

	if s.cluster != nil && !s.ours(s.cluster) {
		s.cluster = nil // hostedClusterMade tells
	}

	return err
}

// made says whether a HostedCluster has been made for the bridge, be it there or not.
func (s *scope) made() bool { return s.cluster != nil || s.bridge.Status.HostedClusterRef != nil }
