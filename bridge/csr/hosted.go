// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package csr

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/kit/credential"
)

// callTimeout bounds one call to a hosted cluster.
const callTimeout = 30 * time.Second

// indexAddress indexes the nodes of a hosted cluster by their addresses and names.
const indexAddress = "address"

// hostedCluster is a hosted cluster that is watched.
type hostedCluster struct {
	// kubeconfigDigest is the digest of the kubeconfig that the connection uses.
	kubeconfigDigest [sha256.Size]byte
	// dpuCluster is the DPUCluster of the bridge.
	dpuCluster types.NamespacedName
	cache      cache.Cache
	client     client.Client
	// synced returns for each watch whether it has delivered the objects that existed at its start.
	synced []toolscache.InformerSynced
	// cancel stops the watches, and done is closed when they have stopped.
	cancel context.CancelFunc
	done   chan struct{}
	// refused holds the pending requests that were refused, and eventCount how many of these refusals are events.
	// isLimitReported is true if an event says that further refusals are no events. Only the reconcile of the bridge uses
	// these fields.
	refused         map[types.UID]refusedRequest
	eventCount      int
	isLimitReported bool
}

// refusedRequest is a pending request that was refused.
type refusedRequest struct {
	reason string
	// node is the node of the request. It is empty if the content of the request was refused, which is final,
	// because the content cannot change.
	node string
	// hasEvent is true if the refusal is an event of the bridge.
	hasEvent bool
}

// isFinal reports whether the content of the request was refused.
func (r refusedRequest) isFinal() bool { return r.node == "" }

// hostedClusters holds the hosted clusters that are watched, by their bridge.
type hostedClusters struct {
	scheme *runtime.Scheme
	// wrapTransport wraps the transports, for example to count calls. It may be nil.
	wrapTransport func(http.RoundTripper) http.RoundTripper
	// enqueue enqueues a bridge.
	enqueue func(types.NamespacedName)

	mu        sync.Mutex
	clusters  map[types.NamespacedName]*hostedCluster
	isStopped bool
}

// newScheme returns a scheme with the types that are read from hosted clusters.
func newScheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{certificatesv1.AddToScheme, corev1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("add types to scheme: %w", err)
		}
	}

	return scheme, nil
}

// getOrOpen returns the hosted cluster of a bridge. If the cluster is not watched yet, getOrOpen starts the
// watches. If the kubeconfig has changed, getOrOpen replaces the watches.
func (f *hostedClusters) getOrOpen(bridge, dpuCluster types.NamespacedName, kubeconfig []byte) (*hostedCluster, error) {
	digest := sha256.Sum256(kubeconfig)

	f.mu.Lock()
	defer f.mu.Unlock()

	refused := map[types.UID]refusedRequest{}

	if h := f.clusters[bridge]; h != nil {
		if h.kubeconfigDigest == digest {
			return h, nil
		}

		h.stop()
		delete(f.clusters, bridge)

		refused = h.refused // they were reported before
	}

	if f.isStopped {
		return nil, context.Canceled
	}

	config, err := credential.RESTConfigWithoutProxy(kubeconfig)
	if err != nil {
		return nil, err
	}

	h, err := f.open(bridge, config)
	if err != nil {
		return nil, err
	}

	h.kubeconfigDigest, h.dpuCluster, h.refused = digest, dpuCluster, refused
	f.clusters[bridge] = h

	return h, nil
}

// open connects to a hosted cluster and starts its caches. It does not wait until they have synced: it
// enqueues the bridge when they have, and at each relevant change of a node or a certificate request.
func (f *hostedClusters) open(bridge types.NamespacedName, config *rest.Config) (*hostedCluster, error) {
	if f.wrapTransport != nil {
		config.Wrap(f.wrapTransport)
	}

	credential.LimitResponses(config)

	callConfig := rest.CopyConfig(config)
	callConfig.Timeout = callTimeout

	// The mapper is static, so that a cluster that does not respond blocks nothing here.
	mapper := newRESTMapper()

	api, err := client.New(callConfig, client.Options{Scheme: f.scheme, Mapper: mapper})
	if err != nil {
		return nil, fmt.Errorf("create client of hosted cluster: %w", err)
	}

	clusterCache, err := cache.New(config, cache.Options{
		Scheme: f.scheme, Mapper: mapper, DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{&certificatesv1.CertificateSigningRequest{}: {Transform: shrinkRequest}},
	})
	if err != nil {
		return nil, fmt.Errorf("create cache of hosted cluster: %w", err)
	}

	ctx, cancel := context.WithCancel(context.Background())
	h := &hostedCluster{cache: clusterCache, client: api, cancel: cancel, done: make(chan struct{})}

	if err := h.watch(ctx, func() { f.enqueue(bridge) }); err != nil {
		cancel()

		return nil, err
	}

	var goroutines sync.WaitGroup

	goroutines.Go(func() { _ = clusterCache.Start(ctx) }) // the cache retries until ctx is done
	goroutines.Go(func() {
		// The event of the last object may arrive before the caches have synced, and is then ignored.
		if toolscache.WaitForCacheSync(ctx.Done(), h.synced...) {
			f.enqueue(bridge)
		}
	})

	go func() {
		goroutines.Wait()
		close(h.done)
	}()

	return h, nil
}

// watch indexes the nodes by address, and calls notify when a node or a certificate request is added or has
// a relevant change.
func (h *hostedCluster) watch(ctx context.Context, notify func()) error {
	err := h.cache.IndexField(ctx, &corev1.Node{}, indexAddress, func(o client.Object) []string {
		node, ok := o.(*corev1.Node)
		if !ok {
			return nil
		}

		return append(NodeAddresses(node), node.Name)
	})
	if err != nil {
		return fmt.Errorf("index nodes of hosted cluster: %w", err)
	}

	for _, kind := range []client.Object{&certificatesv1.CertificateSigningRequest{}, &corev1.Node{}} {
		informer, err := h.cache.GetInformer(ctx, kind, cache.BlockUntilSynced(false))
		if err != nil {
			return fmt.Errorf("watch hosted cluster: %w", err)
		}

		registration, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { notify() },
			UpdateFunc: func(before, after any) {
				if isRelevantChange(before, after) {
					notify()
				}
			},
		})
		if err != nil {
			return fmt.Errorf("watch hosted cluster: %w", err)
		}

		h.synced = append(h.synced, registration.HasSynced)
	}

	return nil
}

// isRelevantChange returns whether a change can lead to another decision. Of nodes, only their addresses
// and whether they are ready count. Heartbeats do not count.
func isRelevantChange(before, after any) bool {
	oldNode, oldOK := before.(*corev1.Node)
	newNode, newOK := after.(*corev1.Node)

	if !oldOK || !newOK {
		return true
	}

	return !slices.Equal(oldNode.Status.Addresses, newNode.Status.Addresses) || isReady(oldNode) != isReady(newNode)
}

// hasSynced returns whether all objects of the hosted cluster have been read once.
func (h *hostedCluster) hasSynced() bool {
	return !slices.ContainsFunc(h.synced, func(synced toolscache.InformerSynced) bool { return !synced() })
}

// maxRequestBytes bounds the size of a request and of its labels and annotations. A request of a kubelet is smaller
// than 1 KiB, and has no labels and annotations.
const maxRequestBytes = 16 << 10

// shrinkRequest removes the content of a request that is too large for a kubelet's, so that requests cannot fill
// the memory. A request without content is refused.
func shrinkRequest(object any) (any, error) {
	request, ok := object.(*certificatesv1.CertificateSigningRequest)
	if !ok {
		return object, nil
	}

	request.ManagedFields = nil
	size := len(request.Spec.Request)

	for _, texts := range []map[string]string{request.Labels, request.Annotations} {
		for key, value := range texts {
			size += len(key) + len(value)
		}
	}

	if size > maxRequestBytes {
		request.Spec.Request, request.Labels, request.Annotations = nil, nil, nil
	}

	return request, nil
}

// listPending returns the pending requests for certificates of kubelets, without renewals. They are those of the
// cache, so the caller must not change them.
func (h *hostedCluster) listPending(ctx context.Context) ([]certificatesv1.CertificateSigningRequest, error) {
	var all certificatesv1.CertificateSigningRequestList
	if err := h.cache.List(ctx, &all, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list CertificateSigningRequests of hosted cluster: %w", err)
	}

	return slices.DeleteFunc(all.Items, func(object certificatesv1.CertificateSigningRequest) bool {
		return !IsKubeletRequest(&object) || !IsPending(&object) || isRenewal(&object)
	}), nil
}

// removeOldRefusals removes the refusals of requests that are no longer pending, and counts the events of the
// others. If there are fewer than maxRefusalEvents, further refusals get events again.
func (h *hostedCluster) removeOldRefusals(pending []certificatesv1.CertificateSigningRequest) {
	isPending := make(map[types.UID]bool, len(pending))
	for i := range pending {
		isPending[pending[i].UID] = true
	}

	maps.DeleteFunc(h.refused, func(uid types.UID, _ refusedRequest) bool { return !isPending[uid] })

	h.eventCount = 0

	for _, request := range h.refused {
		if request.hasEvent {
			h.eventCount++
		}
	}

	if h.eventCount < maxRefusalEvents {
		h.isLimitReported = false
	}
}

// getNode returns the node, and nil if it does not exist.
func (h *hostedCluster) getNode(ctx context.Context, name string) (*corev1.Node, error) {
	node := &corev1.Node{}

	err := h.cache.Get(ctx, types.NamespacedName{Name: name}, node)
	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // a node that does not exist is no error
	}

	if err != nil {
		return nil, fmt.Errorf("get node %s: %w", name, err)
	}

	return node, nil
}

// findOtherNode returns the name of a node that has the address and is not the excluded one. It returns
// the empty string if there is none, and "(unknown)" if the nodes can't be listed, so that the request is
// not approved.
func (h *hostedCluster) findOtherNode(ctx context.Context, address, excluded string) string {
	var nodes corev1.NodeList
	if err := h.cache.List(ctx, &nodes, client.MatchingFields{indexAddress: address}); err != nil {
		return "(unknown)" // cannot happen: the index exists
	}

	for i := range nodes.Items {
		if nodes.Items[i].Name != excluded {
			return nodes.Items[i].Name
		}
	}

	return ""
}

func (h *hostedCluster) stop() {
	h.cancel()
	<-h.done
}

// stopWatching stops the watches of a bridge's hosted cluster and removes the cluster.
func (f *hostedClusters) stopWatching(bridge types.NamespacedName) {
	f.mu.Lock()
	defer f.mu.Unlock()

	if h := f.clusters[bridge]; h != nil {
		h.stop()
		delete(f.clusters, bridge)
	}
}

// bridgesOf returns the bridges of a DPUCluster whose hosted clusters are watched.
func (f *hostedClusters) bridgesOf(dpuCluster types.NamespacedName) []types.NamespacedName {
	f.mu.Lock()
	defer f.mu.Unlock()

	var out []types.NamespacedName

	for bridge, h := range f.clusters {
		if h.dpuCluster == dpuCluster {
			out = append(out, bridge)
		}
	}

	return out
}

// Start implements manager.Runnable. It waits until the manager stops and then stops all watches.
func (f *hostedClusters) Start(ctx context.Context) error {
	<-ctx.Done()

	f.mu.Lock()
	defer f.mu.Unlock()

	f.isStopped = true

	for bridge, h := range f.clusters {
		h.stop()
		delete(f.clusters, bridge)
	}

	return nil
}

// NeedLeaderElection returns true: only the leader watches hosted clusters.
func (f *hostedClusters) NeedLeaderElection() bool { return true }

var errNotOwned = errors.New("it is not owned by the HostedCluster of the bridge")

// newRESTMapper returns a mapper that knows the kinds without a call to the API server.
func newRESTMapper() meta.RESTMapper {
	m := meta.NewDefaultRESTMapper(nil)
	m.Add(certificatesv1.SchemeGroupVersion.WithKind("CertificateSigningRequest"), meta.RESTScopeRoot)
	m.Add(corev1.SchemeGroupVersion.WithKind("Node"), meta.RESTScopeRoot)

	return m
}
