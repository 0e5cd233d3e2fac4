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

// Create creates the object.
func (c *Client) Create(ctx context.Context, object *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	return c.write(ctx, "create", transport.RefTo(object), func(ctx context.Context, calls api) (*unstructured.Unstructured, error) {
		return calls.Create(ctx, object, metav1.CreateOptions{FieldManager: c.manager})
	})
}

// Apply updates the object by server-side apply. It overwrites fields that other field managers have set
// to other values and returns these fields in takenOver. It does not return a conflict over fields, because the
// adapter owns the object and can't wait until a person resolves the conflict.
func (c *Client) Apply(
	ctx context.Context, live, object *unstructured.Unstructured,
) (applied *unstructured.Unstructured, takenOver string, err error) {
	ref := transport.RefTo(live)
	// The request uses the API version of the manifest.
	ref.GVK = object.GroupVersionKind()

	applied, err = c.write(ctx, "apply", ref, func(ctx context.Context, calls api) (*unstructured.Unstructured, error) {
		live, err := c.moveFields(ctx, calls, live)
		if err != nil {
			return nil, err
		}

		object := object.DeepCopy()
		object.SetManagedFields(nil)
		object.SetUID(live.GetUID())
		object.SetResourceVersion(live.GetResourceVersion())

		options := metav1.ApplyOptions{FieldManager: c.manager}
		applied, err := calls.Apply(ctx, ref.Name, object, options)

		conflictFields, isConflict := c.fieldConflicts(err)
		if !isConflict {
			return applied, err
		}

		takenOver, options.Force = conflictFields, true

		return calls.Apply(ctx, ref.Name, object, options)
	})

	return applied, takenOver, err
}

// moveFields moves the fields that Create has set to the field manager of Apply. This is
// necessary once for each object, because an apply removes only fields that an apply has set (Kubernetes,
// "Server-Side Apply", section "Upgrading from client-side apply to server-side apply").
func (c *Client) moveFields(ctx context.Context, calls api, live *unstructured.Unstructured) (*unstructured.Unstructured, error) {
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

// fieldConflicts reports whether an error is a conflict over fields and not over the resource version. It
// returns the fields with their managers, without the fields that a patch of this adapter has set.
func (c *Client) fieldConflicts(err error) (fields string, isConflict bool) {
	var status apierrors.APIStatus
	if !apierrors.IsConflict(err) || !errors.As(err, &status) || status.Status().Details == nil {
		return "", false
	}

	var conflicts []string

	for _, cause := range status.Status().Details.Causes {
		if cause.Type != metav1.CauseTypeFieldManagerConflict {
			return "", false
		}

		isConflict = true

		// The message contains the field manager: conflict with "NAME" using v1
		if !strings.Contains(cause.Message, `"`+c.manager+patchSuffix+`"`) {
			conflicts = append(conflicts, fmt.Sprintf("%s (%s)", cause.Field, cause.Message))
		}
	}

	return strings.Join(conflicts, ", "), isConflict
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

// Delete requests the deletion of the object.
func (c *Client) Delete(ctx context.Context, ref transport.Ref, propagation metav1.DeletionPropagation) error {
	_, err := c.write(ctx, "delete", ref, func(ctx context.Context, calls api) (*unstructured.Unstructured, error) {
		return nil, calls.Delete(ctx, ref.Name, metav1.DeleteOptions{
			PropagationPolicy: &propagation,
			Preconditions:     &metav1.Preconditions{UID: &ref.UID, ResourceVersion: &ref.ResourceVersion},
		})
	})

	return err
}

// api is the client for the objects of a kind, in a namespace if the kind is namespaced.
type api = dynamic.ResourceInterface

// write calls do with the client for the object. All calls of do share the timeout of one call.
func (c *Client) write(
	ctx context.Context, verb string, ref transport.Ref, do func(context.Context, api) (*unstructured.Unstructured, error),
) (*unstructured.Unstructured, error) {
	calls, isNamespaced, err := c.resourceFor(ctx, ref.GVK, ref.Namespace)

	switch {
	case err != nil:
		return nil, transport.Error(verb, ref, err)
	case isNamespaced && ref.Namespace == "":
		return nil, errclass.New(errclass.Permanent, transport.ReasonInvalid,
			"%s %s: the kind is namespaced, but no namespace is given; set metadata.namespace", verb, ref)
	case !isNamespaced && ref.Namespace != "":
		return nil, errclass.New(errclass.Permanent, transport.ReasonInvalid,
			"%s %s: the kind is cluster-scoped; remove metadata.namespace", verb, ref)
	}

	ctx, cancel := c.withTimeout(ctx)
	defer cancel()

	object, err := do(ctx, calls)

	return object, transport.Error(verb, ref, err)
}
