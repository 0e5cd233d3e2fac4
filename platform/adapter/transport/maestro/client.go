// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package maestro

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/hyperfleet/hyperfleet/api/adapter"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/platform/adapter/transport"
	"github.com/hyperfleet/hyperfleet/platform/adapter/transport/kubernetes"
)

// Open creates a client from the configuration, which was validated. It sets Config and Timeout of the options. The QPS and
// burst of limits apply to the calls to the hub.
func Open(config *adapter.Maestro, limits adapter.Kubernetes, options kubernetes.Options) (Client, error) {
	hub, err := kubernetes.LoadConfig(config.KubeConfigPath, limits.QPS, limits.Burst)
	if err != nil {
		return Client{}, err
	}

	options.Config, options.Timeout = hub, config.Timeout

	return New(options)
}

// Client reads and writes ManifestWorks on a hub.
type Client struct{ *kubernetes.Client }

var _ transport.Client = Client{}

// New creates a client of the hub that options.Config connects to.
func New(options kubernetes.Options) (Client, error) {
	options.System = transport.Maestro

	hub, err := kubernetes.New(options)

	return Client{hub}, err
}

// Apply merges the work's labels and annotations into the live work, and replaces the spec of the live
// work. Labels and annotations of other programs stay. takenOver is always
// empty, because a merge patch does not return other field managers.
func (c Client) Apply(
	ctx context.Context, live, work *unstructured.Unstructured,
) (applied *unstructured.Unstructured, takenOver string, err error) {
	ref := transport.RefTo(live)

	document, err := createPatch(live, work)
	if err != nil {
		return nil, "", errclass.New(errclass.Permanent, transport.ReasonInvalid, "apply %s: %w", ref, err)
	}

	applied, err = c.Patch(ctx, ref, document)

	return applied, "", err
}

// createPatch returns the merge patch from the live work to the desired work.
func createPatch(live, work *unstructured.Unstructured) (map[string]any, error) {
	document, err := transport.CreateMergePatch(specOf(live), specOf(work))
	if err != nil {
		return nil, err
	}

	metadata := map[string]any{}
	for field, values := range map[string]map[string]string{"labels": work.GetLabels(), "annotations": work.GetAnnotations()} {
		if len(values) > 0 {
			metadata[field] = values
		}
	}

	document["metadata"] = metadata

	return document, nil
}

func specOf(work *unstructured.Unstructured) map[string]any {
	return map[string]any{"spec": work.Object["spec"]}
}

// Delete requests the deletion of the ManifestWork. The work's deleteOption decides whether the objects on
// the cluster are deleted. With propagation Foreground or Orphan, Delete first sets the deleteOption.
// With Background, the deleteOption of the manifest applies.
func (c Client) Delete(ctx context.Context, ref transport.Ref, propagation metav1.DeletionPropagation) error {
	if propagation != metav1.DeletePropagationBackground {
		patched, err := c.Patch(ctx, ref, map[string]any{
			"spec": map[string]any{"deleteOption": map[string]any{"propagationPolicy": string(propagation)}},
		})
		if err != nil {
			return err
		}

		ref.ResourceVersion = patched.GetResourceVersion()
	}

	return c.Client.Delete(ctx, ref, metav1.DeletePropagationBackground)
}
