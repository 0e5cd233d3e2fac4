// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package alloc_test

import "reflect"

var (
	stringsType    = reflect.TypeFor[[]string]()
	operationsType = reflect.TypeFor[[]operation]()
)
