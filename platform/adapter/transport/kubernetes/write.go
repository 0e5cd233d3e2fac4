// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/util/csaupgrade"

	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/platform/adapter/transport"
)

// Create makes the object.
func (c *Client) Create(ctx context.Context, object *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	return c.write(ctx, "create", transport.RefTo(object), func(ctx context.Context, calls api) (*unstructured.Unstructured, error) {
		return calls.Create(ctx, object, metav1.CreateOptions{FieldManager: c.manager})
	})
}

// Apply is a server-side apply. Fields that other managers have set to other values are
// taken over, and that is told: the object is the adapter's, and it could not wait for
// somebody to resolve the conflict.
func (c *Client) Apply(ctx context.Context, live, object *unstructured.Unstructured) (*unstructured.Unstructured, string, error) {
	ref := transport.RefTo(live)
	// The request is for the version that the manifest is written in.
	ref.GVK = object.GroupVersionKind()

	var fields string

	applied, err := c.write(ctx, "apply", ref, func(ctx context.Context, calls api) (*unstructured.Unstructured, error) {
		live, err := c.adopt(ctx, calls, live)
		if err != nil {
			return nil, err
		}

		object := object.DeepCopy()
		object.SetManagedFields(nil)
		object.SetUID(live.GetUID())
		object.SetResourceVersion(live.GetResourceVersion())

		options := metav1.ApplyOptions{FieldManager: c.manager}
		applied, err := calls.Apply(ctx, ref.Name, object, options)

		taken, conflict := c.takenOver(err)
		if !conflict {
			return applied, err
		}

		fields, options.Force = taken, true

		return calls.Apply(ctx, ref.Name, object, options)
	})

	return applied, fields, err
}

// adopt makes the fields that Create has set those of Apply, once: an apply removes only
// what an apply has set (Kubernetes, "Server-Side Apply", section "Upgrading from
// client-side apply to server-side apply").
func (c *Client) adopt(ctx context.Context, calls api, live *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	patch, err := csaupgrade.UpgradeManagedFieldsPatch(live, sets.New(c.manager), c.manager)
	if err != nil {
		return nil, fmt.Errorf("read managed fields: %w", err)
	}

	if patch == nil {
		return live, nil
	}

	options := metav1.PatchOptions{FieldManager: c.manager}

	return calls.Patch(ctx, live.GetName(), types.JSONPatchType, patch, options)
}

// takenOver tells a conflict over fields from one over the object's state, and which
// fields it is about. Those that a patch of ours had set are not worth telling.
func (c *Client) takenOver(err error) (fields string, conflict bool) {
	var status apierrors.APIStatus
	if !apierrors.IsConflict(err) || !errors.As(err, &status) || status.Status().Details == nil {
		return "", false
	}

	var told []string

	for _, cause := range status.Status().Details.Causes {
		if cause.Type != metav1.CauseTypeFieldManagerConflict {
			return "", false
		}

		conflict = true

		// The manager is told as: conflict with "NAME" using v1
		if !strings.Contains(cause.Message, `"`+c.manager+patchSuffix+`"`) {
			told = append(told, fmt.Sprintf("%s (%s)", cause.Field, cause.Message))
		}
	}

	return strings.Join(told, ", "), conflict
}

// Patch applies a merge patch.
func (c *Client) Patch(ctx context.Context, ref transport.Ref, document map[string]any) (*unstructured.Unstructured, error) {
	if err := unstructured.SetNestedField(document, ref.ResourceVersion, "metadata", "resourceVersion"); err != nil {
		return nil, errclass.New(errclass.Permanent, transport.ReasonInvalid, "patch %s: %w", ref, err)
	}

	body, err := json.Marshal(document)
	if err != nil {
		return nil, errclass.New(errclass.Permanent, transport.ReasonInvalid, "patch %s: %w", ref, err)
	}

	return c.write(ctx, "patch", ref, func(ctx context.Context, calls api) (*unstructured.Unstructured, error) {
		return calls.Patch(ctx, ref.Name, types.MergePatchType, body, metav1.PatchOptions{FieldManager: c.manager + patchSuffix})
	})
}

// Delete asks for the object's deletion.
func (c *Client) Delete(ctx context.Context, ref transport.Ref, propagation metav1.DeletionPropagation) error {
	_, err := c.write(ctx, "delete", ref, func(ctx context.Context, calls api) (*unstructured.Unstructured, error) {
		return nil, calls.Delete(ctx, ref.Name, metav1.DeleteOptions{
			PropagationPolicy: &propagation,
			Preconditions:     &metav1.Preconditions{UID: &ref.UID, ResourceVersion: &ref.ResourceVersion},
		})
	})

	return err
}

// api are the calls for the objects of a kind, in a namespace where it has them.
type api = dynamic.ResourceInterface

// write makes calls for the object to write, within the time of one.
func (c *Client) write(
	ctx context.Context, verb string, ref transport.Ref, do func(context.Context, api) (*unstructured.Unstructured, error),
) (*unstructured.Unstructured, error) {
	calls, namespaced, err := c.resource(ref.GVK, ref.Namespace)

	switch {
	case err != nil:
		return nil, transport.Error(verb, ref, err)
	case namespaced && ref.Namespace == "":
		return nil, errclass.New(errclass.Permanent, transport.ReasonInvalid,
			"%s %s: the kind lives in namespaces, and none is named; set metadata.namespace", verb, ref)
	case !namespaced && ref.Namespace != "":
		return nil, errclass.New(errclass.Permanent, transport.ReasonInvalid,
			"%s %s: the kind lives in no namespace; leave metadata.namespace out", verb, ref)
	}

	ctx, cancel := c.bound(ctx)
	defer cancel()

	object, err := do(ctx, calls)

	return object, transport.Error(verb, ref, err)
}
