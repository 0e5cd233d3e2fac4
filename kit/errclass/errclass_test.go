// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package errclass_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/hyperfleet/hyperfleet/kit/errclass"
)

func TestClassAndReasonTravelThroughWrapping(t *testing.T) {
	t.Parallel()

	root := errors.New("storage is full")
	claims := schema.GroupResource{Group: "hyperfleet.io", Resource: "machineclaims"}
	quota := apierrors.NewForbidden(claims, "a", errors.New("exceeded quota: few, requested: count/machineclaims.hyperfleet.io=1"))
	unknown := apierrors.NewForbidden(claims, "a", errors.New("status unknown for quota: few"))
	full := errclass.Wrap(errclass.Resource, "StorageFull", root)

	cases := map[string]struct {
		err    error
		class  errclass.Class
		reason string
	}{
		"no error has no class":           {nil, "", "Fallback"},
		"plain error is transient":        {root, errclass.Transient, "Fallback"},
		"classed error":                   {full, errclass.Resource, "StorageFull"},
		"wrapped with %w":                 {fmt.Errorf("clone: %w", full), errclass.Resource, "StorageFull"},
		"joined":                          {errors.Join(root, full), errclass.Resource, "StorageFull"},
		"outermost class wins":            {errclass.Wrap(errclass.Permanent, "Gone", full), errclass.Permanent, "Gone"},
		"deadline has its own reason":     {fmt.Errorf("list: %w", context.DeadlineExceeded), errclass.Transient, "Timeout"},
		"empty reason falls back":         {errclass.New(errclass.Permanent, "", "x"), errclass.Permanent, "Fallback"},
		"a quota is used up":              {fmt.Errorf("create: %w", quota), errclass.Resource, "QuotaExceeded"},
		"a quota is not computed yet":     {fmt.Errorf("create: %w", unknown), errclass.Resource, "QuotaExceeded"},
		"forbidden by something else":     {apierrors.NewForbidden(claims, "a", root), errclass.Transient, "Fallback"},
		"a quota of another system":       {errors.New("exceeded quota"), errclass.Transient, "Fallback"},
		"made with New and still matches": {errclass.New(errclass.Configuration, "BadURL", "parse: %w", root), errclass.Configuration, "BadURL"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			if got := errclass.ClassOf(tc.err); got != tc.class {
				t.Errorf("Of() = %q, want %q", got, tc.class)
			}

			if got := errclass.ReasonOf(tc.err, "Fallback"); got != tc.reason {
				t.Errorf("Reason() = %q, want %q", got, tc.reason)
			}
		})
	}

	if !errors.Is(full, root) {
		t.Error("the wrapped error is lost")
	}

	if errclass.Wrap(errclass.Permanent, "X", nil) != nil {
		t.Error("Wrap(nil) is not nil")
	}
}
