// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package drain

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/kit/credential"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/kit/httpbound"
	"github.com/hyperfleet/hyperfleet/kit/kubeconfig"
	"github.com/hyperfleet/hyperfleet/kit/retry"
)

const (
	// callTimeout bounds one call to the cluster.
	callTimeout = 10 * time.Second
	// pageSize is how many pods one call lists.
	pageSize = 500
	// evictions bounds those that one Drain asks for.
	evictions = 100
	// maxPods bounds those of one Node: Kubernetes means 110, and the server is a tenant's.
	maxPods = 5000
)

// Cluster is one whose Nodes are drained.
type Cluster struct {
	client client.Client
	close  func()
}

// Open makes a client of the cluster that a kubeconfig leads to. It has connections of its own,
// which Close ends.
func Open(data []byte) (*Cluster, error) {
	config, err := kubeconfig.Rest(data)
	if err != nil {
		return nil, fmt.Errorf("connect to the cluster of the Node: %w", err)
	}

	tls, err := rest.TLSConfigFor(config)
	if err != nil {
		return nil, errors.New("connect to the cluster of the Node: its kubeconfig has certificates that can't be read")
	}

	transport := httpbound.Plain()
	transport.TLSClientConfig = tls

	if config.Proxy != nil {
		transport.Proxy = config.Proxy
	}

	// A pass makes few calls, and each is bounded: nothing waits for its turn in them.
	config.QPS = -1

	wrapped, err := rest.HTTPWrappersForConfig(config, atOnce(httpbound.Transport(transport)))
	if err != nil {
		return nil, errors.New("connect to the cluster of the Node: its kubeconfig has credentials that can't be used")
	}

	scheme, mapper := runtime.NewScheme(), meta.NewDefaultRESTMapper(nil)
	if err := errors.Join(corev1.AddToScheme(scheme), policyv1.AddToScheme(scheme)); err != nil {
		return nil, fmt.Errorf("add kinds: %w", err)
	}

	// The kinds are known, so that nothing is asked for them.
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Node"), meta.RESTScopeRoot)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Pod"), meta.RESTScopeNamespace)

	made, err := client.New(config, client.Options{
		Scheme: scheme, Mapper: mapper, HTTPClient: &http.Client{
			Transport: wrapped, Timeout: callTimeout,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	})
	if err != nil {
		return nil, fmt.Errorf("connect to the cluster of the Node: %w", err)
	}

	return &Cluster{client: made, close: transport.CloseIdleConnections}, nil
}

// OpenSecret is Open for a kubeconfig in a Secret.
func OpenSecret(ctx context.Context, reader client.Reader, name client.ObjectKey, key string) (*Cluster, error) {
	data, err := credential.ReadKubeconfig(ctx, reader, name, key)
	if err != nil {
		return nil, fmt.Errorf("read drain.kubeconfigSecretRef: %w", err)
	}

	return Open(data)
}

// atOnce has no call repeated. client-go waits and tries again where an answer says when, as that
// of a PodDisruptionBudget does which no controller has looked at yet, until the call's time is
// over: then nobody knew why.
func atOnce(next http.RoundTripper) http.RoundTripper {
	return retry.RoundTripper(func(r *http.Request) (*http.Response, error) {
		answer, err := next.RoundTrip(r)
		if answer != nil {
			answer.Header.Del("Retry-After")
		}

		return answer, err //nolint:wrapcheck // it is the transport's
	})
}

// Close ends the connections.
func (c *Cluster) Close() { c.close() }

// Progress is how far a drain has come.
type Progress struct {
	// NoNode says that there is no such Node. Node is that which was drained.
	NoNode bool
	Node   types.UID
	// Left are the pods that are still to go, as NAMESPACE/NAME, and Kept those of them whose
	// eviction was refused for now, with the PodDisruptionBudget that holds them where the
	// cluster names one.
	Left, Kept []string
}

// Drain cordons a Node, and evicts what may be evicted now.
func (c *Cluster) Drain(ctx context.Context, name string) (Progress, error) {
	node := &corev1.Node{}

	err := c.client.Get(ctx, client.ObjectKey{Name: name}, node)
	if apierrors.IsNotFound(err) {
		return Progress{NoNode: true}, nil
	}

	if err != nil {
		return Progress{}, fmt.Errorf("get node %s: %w", name, answered(err))
	}

	if err := c.cordon(ctx, node); err != nil {
		return Progress{Node: node.UID}, err
	}

	pods, err := c.pods(ctx, name)
	if err != nil {
		return Progress{Node: node.UID}, err
	}

	progress, err := c.evict(ctx, pods, ready(node))
	progress.Node = node.UID

	return progress, err
}

// ReasonNodeForbidden is that of Forget's error where the kubeconfig's user may not.
const ReasonNodeForbidden = "NodeForbidden"

// Forget deletes the Node of a machine that is gone. Another Node of the name stays.
func (c *Cluster) Forget(ctx context.Context, name string, uid types.UID) error {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}

	err := c.client.Delete(ctx, node, client.Preconditions{UID: &uid})
	if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}

	if apierrors.IsForbidden(err) {
		return errclass.New(errclass.Configuration, ReasonNodeForbidden,
			"delete node %s: the kubeconfig's user may not: let it delete nodes", name)
	}

	return fmt.Errorf("delete node %s: %w", name, answered(err))
}

// cordon keeps new pods off the Node.
func (c *Cluster) cordon(ctx context.Context, node *corev1.Node) error {
	if node.Spec.Unschedulable {
		return nil
	}

	before := node.DeepCopy()
	node.Spec.Unschedulable = true

	if err := client.IgnoreNotFound(c.client.Patch(ctx, node, client.MergeFrom(before))); err != nil {
		return fmt.Errorf("cordon node %s: %w", node.Name, answered(err))
	}

	return nil
}

// pods are those on the Node that have to go.
func (c *Cluster) pods(ctx context.Context, node string) ([]corev1.Pod, error) {
	var (
		out  []corev1.Pod
		next string
	)

	for range maxPods/pageSize + 1 {
		var page corev1.PodList

		err := c.client.List(ctx, &page, client.MatchingFields{"spec.nodeName": node}, client.Limit(pageSize), client.Continue(next))
		if err != nil {
			return nil, fmt.Errorf("list pods of node %s: %w", node, answered(err))
		}

		if len(out)+len(page.Items) > maxPods {
			return nil, fmt.Errorf("list pods of node %s: it has more than %d", node, maxPods)
		}

		for i := range page.Items {
			if goes(&page.Items[i]) {
				out = append(out, page.Items[i])
			}
		}

		if next = page.Continue; next == "" {
			return out, nil
		}
	}

	return nil, fmt.Errorf("list pods of node %s: the list does not end", node)
}

// answered is an error without the words of the server's answer: a tenant names the server, and
// may read what is told of it.
func answered(err error) error {
	if status, ok := errors.AsType[*apierrors.StatusError](err); ok {
		return fmt.Errorf("the API server of the Node's cluster answered %d %s", status.ErrStatus.Code,
			http.StatusText(int(status.ErrStatus.Code)))
	}

	// Errors of the connection are told. Those of reading an answer quote it: its kinds, for one.
	if call, ok := errors.AsType[*url.Error](err); ok {
		return call
	}

	if cut := ctxError(err); cut != nil {
		return cut
	}

	return errUnreadable
}

var errUnreadable = errors.New("the API server of the Node's cluster answered what can't be read: " +
	"check the server in the kubeconfig")

// ctxError is the end of a call's time in an error, or nil.
func ctxError(err error) error {
	for _, end := range []error{context.DeadlineExceeded, context.Canceled} {
		if errors.Is(err, end) {
			return end
		}
	}

	return nil
}

// aBudget is how Kubernetes tells which PodDisruptionBudget refuses an eviction
// (pkg/registry/core/pod/storage/eviction.go): there is no field for its name.
var aBudget = regexp.MustCompile(`^The disruption budget ([a-z0-9][-.a-z0-9]{0,252}) `)

// heldBy names the PodDisruptionBudget that an eviction was refused for, and nothing else of
// the answer.
func heldBy(err error) string {
	status, ok := errors.AsType[*apierrors.StatusError](err)
	if !ok || status.ErrStatus.Details == nil {
		return ""
	}

	for _, cause := range status.ErrStatus.Details.Causes {
		if named := aBudget.FindStringSubmatch(cause.Message); cause.Type == policyv1.DisruptionBudgetCause && named != nil {
			return " by PodDisruptionBudget " + named[1]
		}
	}

	return ""
}

// goes says whether a pod has to be off its Node before that goes.
func goes(pod *corev1.Pod) bool {
	if _, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]; mirror {
		return false
	}

	if owner := metav1.GetControllerOf(pod); owner != nil && owner.Kind == "DaemonSet" {
		return false // it would be made again at once
	}

	return pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed
}

// evict asks for the eviction of pods. Those on a Node that is not ready are not waited for once
// they are evicted: nobody ends them there.
func (c *Cluster) evict(ctx context.Context, pods []corev1.Pod, ready bool) (Progress, error) {
	var (
		out      Progress
		problems []error
		asked    int
	)

	for i := range pods {
		pod := &pods[i]
		name := client.ObjectKeyFromObject(pod).String()
		going := pod.DeletionTimestamp != nil

		if !going && asked < evictions {
			asked++

			err := c.client.SubResource("eviction").Create(ctx, pod, &policyv1.Eviction{
				ObjectMeta:    metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name},
				DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID}},
			})

			switch {
			case err == nil:
				going = true
			case apierrors.IsNotFound(err), apierrors.IsConflict(err):
				continue // it is gone, or another one has its name
			case apierrors.IsTooManyRequests(err):
				out.Kept = append(out.Kept, name+heldBy(err))
			default:
				problems = append(problems, fmt.Errorf("evict pod %s: %w", name, answered(err)))
			}
		}

		if !going || ready {
			out.Left = append(out.Left, name)
		}
	}

	return out, errors.Join(problems...)
}

func ready(node *corev1.Node) bool {
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			return condition.Status == corev1.ConditionTrue
		}
	}

	return false
}
