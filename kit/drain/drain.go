// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package drain

import (
	"context"
	"errors"
	"fmt"
	"regexp"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/credential"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/kit/kubeconfig"
)

const (
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
	made, end, err := kubeconfig.Connect(data, kubeconfig.Kinds{
		Add: []func(*runtime.Scheme) error{corev1.AddToScheme, policyv1.AddToScheme},
		Known: map[schema.GroupVersionKind]meta.RESTScope{
			corev1.SchemeGroupVersion.WithKind("Node"): meta.RESTScopeRoot,
			corev1.SchemeGroupVersion.WithKind("Pod"):  meta.RESTScopeNamespace,
		},
	})
	if err != nil {
		return nil, fmt.Errorf("connect to the cluster of the Node: %w", err)
	}

	return &Cluster{client: made, close: end}, nil
}

// OpenSecret is Open for a kubeconfig in a Secret.
func OpenSecret(ctx context.Context, reader client.Reader, name client.ObjectKey, key string) (*Cluster, error) {
	data, err := credential.ReadKubeconfig(ctx, reader, name, key)
	if err != nil {
		return nil, fmt.Errorf("read drain.kubeconfigSecretRef: %w", err)
	}

	return Open(data)
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

// Drain cordons a Node, and evicts what may be evicted now. One that comes back bears a mark, by
// which Return knows that it was cordoned here.
func (c *Cluster) Drain(ctx context.Context, name string, comesBack bool) (Progress, error) {
	node := &corev1.Node{}

	err := c.client.Get(ctx, client.ObjectKey{Name: name}, node)
	if apierrors.IsNotFound(err) {
		return Progress{NoNode: true}, nil
	}

	if err != nil {
		return Progress{}, fmt.Errorf("get node %s: %w", name, kubeconfig.Answered(err))
	}

	if err := c.cordon(ctx, node, comesBack); err != nil {
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

	return fmt.Errorf("delete node %s: %w", name, kubeconfig.Answered(err))
}

// Return lets pods on a Node again that Drain has kept them off, and says whether it is ready. A Node
// that is gone is none that anybody waits for.
func (c *Cluster) Return(ctx context.Context, name string) (bool, error) {
	node := &corev1.Node{}

	err := c.client.Get(ctx, client.ObjectKey{Name: name}, node)
	if apierrors.IsNotFound(err) {
		return true, nil
	}

	if err != nil {
		return false, fmt.Errorf("get node %s: %w", name, kubeconfig.Answered(err))
	}

	if _, ours := node.Annotations[v1alpha1.AnnotationCordonedForUpdate]; !ours {
		return ready(node), nil
	}

	before := node.DeepCopy()
	node.Spec.Unschedulable = false
	delete(node.Annotations, v1alpha1.AnnotationCordonedForUpdate)

	if err := client.IgnoreNotFound(c.client.Patch(ctx, node, client.MergeFrom(before))); err != nil {
		return false, fmt.Errorf("uncordon node %s: %w", name, kubeconfig.Answered(err))
	}

	return ready(node), nil
}

// cordon keeps new pods off the Node. The mark is set with it, and not on one that somebody else
// has cordoned.
func (c *Cluster) cordon(ctx context.Context, node *corev1.Node, mark bool) error {
	if node.Spec.Unschedulable {
		return nil
	}

	before := node.DeepCopy()
	node.Spec.Unschedulable = true

	if mark {
		metav1.SetMetaDataAnnotation(&node.ObjectMeta, v1alpha1.AnnotationCordonedForUpdate, "true")
	}

	if err := client.IgnoreNotFound(c.client.Patch(ctx, node, client.MergeFrom(before))); err != nil {
		return fmt.Errorf("cordon node %s: %w", node.Name, kubeconfig.Answered(err))
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
			return nil, fmt.Errorf("list pods of node %s: %w", node, kubeconfig.Answered(err))
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
				problems = append(problems, fmt.Errorf("evict pod %s: %w", name, kubeconfig.Answered(err)))
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
