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
)

const (
	// pageSize is the maximum number of pods in one page of a list.
	pageSize = 500
	// maxEvictions is the maximum number of evictions that one call of Drain requests.
	maxEvictions = 100
	// maxPods is the maximum number of pods of one Node. Kubernetes recommends at most 110, but the
	// API server belongs to a tenant and is not trusted.
	maxPods = 5000
)

// Cluster is a client of a cluster whose Nodes are drained.
type Cluster struct {
	client client.Client
	close  func()
}

// Connect returns a client of the cluster in a kubeconfig. The client has connections of its own,
// which Close closes.
func Connect(data []byte) (*Cluster, error) {
	c, closeIdle, err := credential.Connect(data, credential.Kinds{
		AddToScheme: []func(*runtime.Scheme) error{corev1.AddToScheme, policyv1.AddToScheme},
		Scopes: map[schema.GroupVersionKind]meta.RESTScope{
			corev1.SchemeGroupVersion.WithKind("Node"): meta.RESTScopeRoot,
			corev1.SchemeGroupVersion.WithKind("Pod"):  meta.RESTScopeNamespace,
		},
	})
	if err != nil {
		return nil, fmt.Errorf("connect to the cluster of the Node: %w", err)
	}

	return &Cluster{client: c, close: closeIdle}, nil
}

// ConnectFromSecret reads a kubeconfig from a Secret and calls Connect.
func ConnectFromSecret(ctx context.Context, reader client.Reader, name client.ObjectKey, key string) (*Cluster, error) {
	data, err := credential.ReadKubeconfig(ctx, reader, name, key)
	if err != nil {
		return nil, fmt.Errorf("read drain.kubeconfigSecretRef: %w", err)
	}

	return Connect(data)
}

// Close closes the connections.
func (c *Cluster) Close() { c.close() }

// Progress is the progress of a drain.
type Progress struct {
	// NodeNotFound is true if the Node does not exist.
	NodeNotFound bool
	// NodeUID is the UID of the drained Node.
	NodeUID types.UID
	// RemainingPods are the pods that are still on the Node, as NAMESPACE/NAME. BlockedPods are those
	// of them whose eviction was refused for now, with the PodDisruptionBudget if the API server names
	// it.
	RemainingPods, BlockedPods []string
}

// Drain cordons a Node, and evicts the pods that can be evicted now. If the drain is temporary,
// Drain also sets an annotation, by which Uncordon recognizes that HyperFleet has cordoned the
// Node.
func (c *Cluster) Drain(ctx context.Context, name string, isTemporary bool) (Progress, error) {
	node := &corev1.Node{}

	err := c.client.Get(ctx, client.ObjectKey{Name: name}, node)
	if apierrors.IsNotFound(err) {
		return Progress{NodeNotFound: true}, nil
	}

	if err != nil {
		return Progress{}, fmt.Errorf("get node %s: %w", name, credential.RedactError(err))
	}

	if err := c.cordon(ctx, node, isTemporary); err != nil {
		return Progress{NodeUID: node.UID}, err
	}

	pods, err := c.listPods(ctx, name)
	if err != nil {
		return Progress{NodeUID: node.UID}, err
	}

	progress, err := c.evict(ctx, pods, isNodeReady(node))
	progress.NodeUID = node.UID

	return progress, err
}

// ReasonNodeForbidden is the reason of the error of DeleteNode if the kubeconfig's user has no
// permission.
const ReasonNodeForbidden = "NodeForbidden"

// DeleteNode deletes the Node of a deleted machine. It does not delete another Node with the same name.
func (c *Cluster) DeleteNode(ctx context.Context, name string, uid types.UID) error {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}

	err := c.client.Delete(ctx, node, client.Preconditions{UID: &uid})
	if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}

	if apierrors.IsForbidden(err) {
		return errclass.New(errclass.Configuration, ReasonNodeForbidden,
			"delete node %s: the kubeconfig's user has no permission: grant it `delete` on nodes", name)
	}

	return fmt.Errorf("delete node %s: %w", name, credential.RedactError(err))
}

// Uncordon makes a Node schedulable again if Drain cordoned it temporarily, and returns whether the
// Node is ready. It returns true if the Node does not exist, because then nobody has to wait for
// it.
func (c *Cluster) Uncordon(ctx context.Context, name string) (isReady bool, err error) {
	node := &corev1.Node{}

	err = c.client.Get(ctx, client.ObjectKey{Name: name}, node)
	if apierrors.IsNotFound(err) {
		return true, nil
	}

	if err != nil {
		return false, fmt.Errorf("get node %s: %w", name, credential.RedactError(err))
	}

	if _, hasAnnotation := node.Annotations[v1alpha1.AnnotationCordonedForUpdate]; !hasAnnotation {
		return isNodeReady(node), nil
	}

	before := node.DeepCopy()
	node.Spec.Unschedulable = false
	delete(node.Annotations, v1alpha1.AnnotationCordonedForUpdate)

	if err := client.IgnoreNotFound(c.client.Patch(ctx, node, client.MergeFrom(before))); err != nil {
		return false, fmt.Errorf("uncordon node %s: %w", name, credential.RedactError(err))
	}

	return isNodeReady(node), nil
}

// cordon makes the Node unschedulable and, for a temporary drain, sets the annotation in the same
// patch. If the Node is already cordoned, cordon changes nothing.
func (c *Cluster) cordon(ctx context.Context, node *corev1.Node, isTemporary bool) error {
	if node.Spec.Unschedulable {
		return nil
	}

	before := node.DeepCopy()
	node.Spec.Unschedulable = true

	if isTemporary {
		metav1.SetMetaDataAnnotation(&node.ObjectMeta, v1alpha1.AnnotationCordonedForUpdate, "true")
	}

	if err := client.IgnoreNotFound(c.client.Patch(ctx, node, client.MergeFrom(before))); err != nil {
		return fmt.Errorf("cordon node %s: %w", node.Name, credential.RedactError(err))
	}

	return nil
}

// listPods returns the pods on the Node that must be evicted.
func (c *Cluster) listPods(ctx context.Context, node string) ([]corev1.Pod, error) {
	var (
		out  []corev1.Pod
		next string
	)

	for range maxPods/pageSize + 1 {
		var page corev1.PodList

		err := c.client.List(ctx, &page, client.MatchingFields{"spec.nodeName": node}, client.Limit(pageSize), client.Continue(next))
		if err != nil {
			return nil, fmt.Errorf("list pods of node %s: %w", node, credential.RedactError(err))
		}

		if len(out)+len(page.Items) > maxPods {
			return nil, fmt.Errorf("list pods of node %s: the node has more than %d pods", node, maxPods)
		}

		for i := range page.Items {
			if mustEvict(&page.Items[i]) {
				out = append(out, page.Items[i])
			}
		}

		if next = page.Continue; next == "" {
			return out, nil
		}
	}

	return nil, fmt.Errorf("list pods of node %s: the list has too many pages", node)
}

// budgetPattern matches the message in which Kubernetes names the PodDisruptionBudget that refuses
// an eviction (pkg/registry/core/pod/storage/eviction.go). The response has no field for the name.
var budgetPattern = regexp.MustCompile(`^The disruption budget ([a-z0-9][-.a-z0-9]{0,252}) `)

// describeBudget returns the name of the PodDisruptionBudget that refused an eviction, as a phrase
// to append to the name of the pod. It includes nothing else of the response, and returns "" if the
// response names no budget.
func describeBudget(err error) string {
	status, ok := errors.AsType[*apierrors.StatusError](err)
	if !ok || status.ErrStatus.Details == nil {
		return ""
	}

	for _, cause := range status.ErrStatus.Details.Causes {
		if match := budgetPattern.FindStringSubmatch(cause.Message); cause.Type == policyv1.DisruptionBudgetCause && match != nil {
			return " by PodDisruptionBudget " + match[1]
		}
	}

	return ""
}

// mustEvict returns whether a pod must leave its Node before the Node is drained.
func mustEvict(pod *corev1.Pod) bool {
	if _, isMirror := pod.Annotations[corev1.MirrorPodAnnotationKey]; isMirror {
		return false
	}

	if owner := metav1.GetControllerOf(pod); owner != nil && owner.Kind == "DaemonSet" {
		return false // the DaemonSet would recreate it immediately
	}

	return pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed
}

// evict requests the eviction of pods. If the Node is not ready, evicted pods do not count as
// remaining, because no kubelet terminates them.
func (c *Cluster) evict(ctx context.Context, pods []corev1.Pod, hasReadyNode bool) (Progress, error) {
	var (
		out      Progress
		problems []error
		requests int
	)

	for i := range pods {
		pod := &pods[i]
		name := client.ObjectKeyFromObject(pod).String()
		isTerminating := pod.DeletionTimestamp != nil

		if !isTerminating && requests < maxEvictions {
			requests++

			err := c.client.SubResource("eviction").Create(ctx, pod, &policyv1.Eviction{
				ObjectMeta:    metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name},
				DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID}},
			})

			switch {
			case err == nil:
				isTerminating = true
			case apierrors.IsNotFound(err), apierrors.IsConflict(err):
				continue // the pod is deleted, or another pod has its name
			case apierrors.IsTooManyRequests(err):
				out.BlockedPods = append(out.BlockedPods, name+describeBudget(err))
			default:
				problems = append(problems, fmt.Errorf("evict pod %s: %w", name, credential.RedactError(err)))
			}
		}

		if !isTerminating || hasReadyNode {
			out.RemainingPods = append(out.RemainingPods, name)
		}
	}

	return out, errors.Join(problems...)
}

func isNodeReady(node *corev1.Node) bool {
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			return condition.Status == corev1.ConditionTrue
		}
	}

	return false
}
