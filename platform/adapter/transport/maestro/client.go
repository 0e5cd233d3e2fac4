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

// Check says what of the configuration, which may be nil, can't be done.
func Check(config *adapter.Maestro) error {
	switch {
	case config != nil && (config.GRPCServerAddress != "" || config.HTTPServerAddress != ""):
		return errors.New("clients.maestro: a Maestro server (grpc_server_address, http_server_address) is not supported; " +
			"set kube_config_path to reach the Open Cluster Management hub, and leave them out")
	case config == nil || config.KubeConfigPath == "":
		return errors.New("clients.maestro: set kube_config_path, the kubeconfig of the Open Cluster Management hub")
	default:
		return nil
	}
}

// Open makes a client out of the configuration, with the options that remain; calls to the
// hub are bounded by those of limits.
func Open(config *adapter.Maestro, limits adapter.Kubernetes, options kubernetes.Options) (Client, error) {
	if err := Check(config); err != nil {
		return Client{}, err
	}

	hub, err := kubernetes.Config(config.KubeConfigPath, limits.QPS, limits.Burst)
	if err != nil {
		return Client{}, err
	}

	options.Config, options.Timeout = hub, config.Timeout

	return New(options)
}

// Client keeps ManifestWorks on a hub.
type Client struct{ *kubernetes.Client }

var _ transport.Client = Client{}

// New makes a client of the hub that options.Config is of.
func New(options kubernetes.Options) (Client, error) {
	options.System = transport.Maestro

	hub, err := kubernetes.New(options)

	return Client{hub}, err
}

// Apply merges the work's labels, annotations and spec into the live one. Labels and
// annotations of others stay; the spec is as the manifest says.
func (c Client) Apply(ctx context.Context, live, work *unstructured.Unstructured) (*unstructured.Unstructured, string, error) {
	ref := transport.RefTo(live)

	document, err := difference(live, work)
	if err != nil {
		return nil, "", errclass.New(errclass.Permanent, transport.ReasonInvalid, "apply %s: %w", ref, err)
	}

	patched, err := c.Patch(ctx, ref, document)

	return patched, "", err
}

// difference is the merge patch from the live object to the work.
func difference(live, work *unstructured.Unstructured) (map[string]any, error) {
	from, err := json.Marshal(spec(live))
	if err != nil {
		return nil, fmt.Errorf("read spec: %w", err)
	}

	to, err := json.Marshal(spec(work))
	if err != nil {
		return nil, fmt.Errorf("read spec: %w", err)
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

func spec(work *unstructured.Unstructured) map[string]any {
	return map[string]any{"spec": work.Object["spec"]}
}

// Delete asks for the ManifestWork's deletion. What becomes of the objects on the cluster
// is the work's own deleteOption, which propagation Foreground and Orphan set first;
// Background leaves it as the manifest has it.
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
