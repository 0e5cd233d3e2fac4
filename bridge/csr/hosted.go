// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package csr

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
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

	kubeconfigs "github.com/hyperfleet/hyperfleet/kit/kubeconfig"
)

// callTimeout bounds one call to a hosted cluster.
const callTimeout = 30 * time.Second

// indexAddress is of nodes of a hosted cluster, by their addresses.
const indexAddress = "address"

// hosted is a hosted cluster that is watched.
type hosted struct {
	// kubeconfig is the digest of the one that leads to it.
	kubeconfig [sha256.Size]byte
	// dpus is the bridge's DPUCluster.
	dpus   types.NamespacedName
	view   cache.Cache
	client client.Client
	synced []toolscache.InformerSynced
	cancel context.CancelFunc
	done   chan struct{}
}

// fleet is the hosted clusters that are watched, by their bridge.
type fleet struct {
	scheme *runtime.Scheme
	// transport counts calls; may be nil.
	transport func(http.RoundTripper) http.RoundTripper
	// enqueue asks for a pass over a bridge.
	enqueue func(types.NamespacedName)

	mu       sync.Mutex
	clusters map[types.NamespacedName]*hosted
	closed   bool
}

// newScheme knows what is read of hosted clusters.
func newScheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{certificatesv1.AddToScheme, corev1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("add kinds: %w", err)
		}
	}

	return scheme, nil
}

// get gives the hosted cluster of a bridge, and begins to watch it where it is not watched,
// or by another kubeconfig.
func (f *fleet) get(bridge, dpus types.NamespacedName, kubeconfig []byte) (*hosted, error) {
	digest := sha256.Sum256(kubeconfig)

	f.mu.Lock()
	defer f.mu.Unlock()

	if h := f.clusters[bridge]; h != nil {
		if h.kubeconfig == digest {
			return h, nil
		}

		h.stop()
		delete(f.clusters, bridge)
	}

	if f.closed {
		return nil, context.Canceled
	}

	config, err := kubeconfigs.Direct(kubeconfig)
	if err != nil {
		return nil, err
	}

	h, err := f.open(bridge, config)
	if err != nil {
		return nil, err
	}

	h.kubeconfig, h.dpus = digest, dpus
	f.clusters[bridge] = h

	return h, nil
}

func (f *fleet) open(bridge types.NamespacedName, config *rest.Config) (*hosted, error) {
	if f.transport != nil {
		config.Wrap(f.transport)
	}

	kubeconfigs.Bound(config)

	calls := rest.CopyConfig(config)
	calls.Timeout = callTimeout

	// The kinds are known, so that a cluster which does not answer holds nobody up.
	mapper := mapper()

	api, err := client.New(calls, client.Options{Scheme: f.scheme, Mapper: mapper})
	if err != nil {
		return nil, fmt.Errorf("make client of hosted cluster: %w", err)
	}

	view, err := cache.New(config, cache.Options{
		Scheme: f.scheme, Mapper: mapper, DefaultTransform: cache.TransformStripManagedFields(),
	})
	if err != nil {
		return nil, fmt.Errorf("make watches of hosted cluster: %w", err)
	}

	ctx, cancel := context.WithCancel(context.Background())
	h := &hosted{view: view, client: api, cancel: cancel, done: make(chan struct{})}

	if err := h.watch(ctx, func() { f.enqueue(bridge) }); err != nil {
		cancel()

		return nil, err
	}

	var both sync.WaitGroup

	both.Go(func() { _ = view.Start(ctx) }) // it tries for as long as it lives
	both.Go(func() {
		// The news of the last object may have come before all was seen.
		if toolscache.WaitForCacheSync(ctx.Done(), h.synced...) {
			f.enqueue(bridge)
		}
	})

	go func() {
		both.Wait()
		close(h.done)
	}()

	return h, nil
}

func (h *hosted) watch(ctx context.Context, changed func()) error {
	err := h.view.IndexField(ctx, &corev1.Node{}, indexAddress, func(o client.Object) []string {
		node, is := o.(*corev1.Node)
		if !is {
			return nil
		}

		return append(AddressesOf(node), node.Name)
	})
	if err != nil {
		return fmt.Errorf("index nodes of hosted cluster: %w", err)
	}

	for _, kind := range []client.Object{&certificatesv1.CertificateSigningRequest{}, &corev1.Node{}} {
		informer, err := h.view.GetInformer(ctx, kind, cache.BlockUntilSynced(false))
		if err != nil {
			return fmt.Errorf("watch hosted cluster: %w", err)
		}

		registration, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { changed() },
			UpdateFunc: func(before, now any) {
				if news(before, now) {
					changed()
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

// news says whether a change may matter: heartbeats of nodes do not.
func news(before, now any) bool {
	old, was := before.(*corev1.Node)
	node, is := now.(*corev1.Node)

	if !was || !is {
		return true
	}

	return !slices.Equal(old.Status.Addresses, node.Status.Addresses) || ready(old) != ready(node)
}

// known says whether all that there is has been seen.
func (h *hosted) known() bool {
	return !slices.ContainsFunc(h.synced, func(synced toolscache.InformerSynced) bool { return !synced() })
}

// pending are the requests that nobody has decided about.
func (h *hosted) pending(ctx context.Context) ([]certificatesv1.CertificateSigningRequest, error) {
	var all certificatesv1.CertificateSigningRequestList
	if err := h.view.List(ctx, &all); err != nil {
		return nil, fmt.Errorf("list requests: %w", err)
	}

	return slices.DeleteFunc(all.Items, func(object certificatesv1.CertificateSigningRequest) bool {
		return !Concerns(&object) || !Pending(&object)
	}), nil
}

// node of a name; nil: there is none.
func (h *hosted) node(ctx context.Context, name string) (*corev1.Node, error) {
	node := &corev1.Node{}

	err := h.view.Get(ctx, types.NamespacedName{Name: name}, node)
	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // none is an answer
	}

	if err != nil {
		return nil, fmt.Errorf("get node %s: %w", name, err)
	}

	return node, nil
}

// holder names a node with an address, but for one.
func (h *hosted) holder(ctx context.Context, address, but string) string {
	var nodes corev1.NodeList
	if err := h.view.List(ctx, &nodes, client.MatchingFields{indexAddress: address}); err != nil {
		// The index is there, so this can't be. Whoever can't be ruled out is in the way.
		return "(unknown)"
	}

	for i := range nodes.Items {
		if nodes.Items[i].Name != but {
			return nodes.Items[i].Name
		}
	}

	return ""
}

func (h *hosted) stop() {
	h.cancel()
	<-h.done
}

// forget ends the watch of a bridge's cluster.
func (f *fleet) forget(bridge types.NamespacedName) {
	f.mu.Lock()
	defer f.mu.Unlock()

	if h := f.clusters[bridge]; h != nil {
		h.stop()
		delete(f.clusters, bridge)
	}
}

// of gives the bridges of a DPUCluster whose clusters are watched.
func (f *fleet) of(dpus types.NamespacedName) []types.NamespacedName {
	f.mu.Lock()
	defer f.mu.Unlock()

	var out []types.NamespacedName

	for bridge, h := range f.clusters {
		if h.dpus == dpus {
			out = append(out, bridge)
		}
	}

	return out
}

// Start ends all watches with the process; it is a manager.Runnable.
func (f *fleet) Start(ctx context.Context) error {
	<-ctx.Done()

	f.mu.Lock()
	defer f.mu.Unlock()

	f.closed = true

	for bridge, h := range f.clusters {
		h.stop()
		delete(f.clusters, bridge)
	}

	return nil
}

// NeedLeaderElection says that only the leader watches hosted clusters.
func (f *fleet) NeedLeaderElection() bool { return true }

var errNotOurs = errors.New("it is not HyperShift's")

// mapper knows the kinds without asking.
func mapper() meta.RESTMapper {
	m := meta.NewDefaultRESTMapper(nil)
	m.Add(certificatesv1.SchemeGroupVersion.WithKind("CertificateSigningRequest"), meta.RESTScopeRoot)
	m.Add(corev1.SchemeGroupVersion.WithKind("Node"), meta.RESTScopeRoot)

	return m
}
