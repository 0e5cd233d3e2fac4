// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package maestro

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	jsonpatch "github.com/evanphx/json-patch/v5"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/hyperfleet/hyperfleet/api/adapter"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/platform/adapter/transport"
	"github.com/hyperfleet/hyperfleet/platform/adapter/transport/kubernetes"
)

// Check returns an error if the configuration is nil, incomplete or not supported.
func Check(config *adapter.Maestro) error {
	switch {
	case config != nil && (config.GRPCServerAddress != "" || config.HTTPServerAddress != ""):
		return errors.New("clients.maestro: a Maestro server (grpc_server_address, http_server_address) is not supported; " +
			"set kube_config_path to use the Open Cluster Management hub, and remove these keys")
	case config == nil || config.KubeConfigPath == "":
		return errors.New("clients.maestro: set kube_config_path, the kubeconfig of the Open Cluster Management hub")
	default:
		return nil
	}
}

// Open creates a client from the configuration. It sets Config and Timeout of the options. The QPS and
// burst of limits apply to the calls to the hub.
func Open(config *adapter.Maestro, limits adapter.Kubernetes, options kubernetes.Options) (Client, error) {
	if err := Check(config); err != nil {
		return Client{}, err
	}

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
// work. Labels and annotations of other programs stay.
func (c Client) Apply(ctx context.Context, live, work *unstructured.Unstructured) (*unstructured.Unstructured, string, error) {
	ref := transport.RefTo(live)

	document, err := createPatch(live, work)
	if err != nil {
		return nil, "", errclass.New(errclass.Permanent, transport.ReasonInvalid, "apply %s: %w", ref, err)
	}

	patched, err := c.Patch(ctx, ref, document)

	return patched, "", err
}

// createPatch returns the merge patch from the live work to the desired work.
func createPatch(live, work *unstructured.Unstructured) (map[string]any, error) {
	from, err := json.Marshal(specOf(live))
	if err != nil {
		return nil, fmt.Errorf("encode spec: %w", err)
	}

	to, err := json.Marshal(specOf(work))
	if err != nil {
		return nil, fmt.Errorf("encode spec: %w", err)
	}

	merge, err := jsonpatch.CreateMergePatch(from, to)
	if err != nil {
		return nil, fmt.Errorf("compare spec: %w", err)
	}

	document := map[string]any{}
	if err := json.Unmarshal(merge, &document); err != nil {
		return nil, fmt.Errorf("compare spec: %w", err)
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
