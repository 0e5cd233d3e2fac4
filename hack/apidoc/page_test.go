// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const smallCRD = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: pets.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {kind: Pet, plural: pets, shortNames: [pt]}
  versions:
  - name: v1
    served: true
    storage: true
    additionalPrinterColumns:
    - {name: Name, type: string, jsonPath: .spec.name}
    - {name: Age, type: date, jsonPath: .metadata.creationTimestamp, priority: 1}
    schema:
      openAPIV3Schema:
        type: object
        description: It is an animal.
        properties:
          spec:
            type: object
            description: spec of it.
            required: [name]
            x-kubernetes-validations:
            - {rule: "true", message: a pet needs a home}
            properties:
              name: {type: string, maxLength: 5, description: "name:\n  one | two."}
              legs: {type: integer, minimum: 0, maximum: 8, default: 4}
              sort: {type: string, enum: [cat, dog]}
              toys:
                type: array
                maxItems: 2
                x-kubernetes-validations:
                - {rule: "true", message: toys must differ}
                items:
                  type: object
                  properties:
                    size: {x-kubernetes-int-or-string: true, description: size of it.}
              chip:
                type: object
                properties:
                  secretKeyRef:
                    type: object
                    properties: {name: {type: string}}
          status:
            type: object
            properties:
              conditions: {type: array, items: {type: object, properties: {type: {type: string}}}}
`

const smallPage = "\n## Pet\n\nIt is an animal.\n\n`apiVersion: example.com/v1`, namespaced. " +
	"`kubectl get pets` or `kubectl get pt` shows: Name, Age (with `-o wide`).\n" + `
### Pet spec

| Field | Type | Default | Limits | Description |
|---|---|---|---|---|
| 'chip' | object |  |  |  |
| 'chip.secretKeyRef' | object |  |  |  |
| 'legs' | integer | '4' | 0 to 8 |  |
| **'name'** | string |  | at most 5 characters | name: one \| two. |
| 'sort' | string |  | one of 'cat', 'dog' |  |
| 'toys' | list of objects |  | at most 2 items |  |
| 'toys[].size' | quantity |  |  | size of it. |

### Pet status

| Field | Type | Default | Limits | Description |
|---|---|---|---|---|
| 'conditions' | list of conditions |  |  |  |

### Pet rules

The API server returns these error messages:

- 'spec': a pet needs a home
- 'spec.toys': toys must differ
`

func TestPage(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "pet.yaml"), []byte(smallCRD), 0o600); err != nil {
		t.Fatal(err)
	}

	crds, err := loadCRDs(dir)
	if err != nil {
		t.Fatal(err)
	}

	got, err := renderPage(crds)
	if err != nil {
		t.Fatal(err)
	}

	if diff := cmp.Diff(strings.ReplaceAll(smallPage, "'", "`"), strings.TrimPrefix(got, preface)); diff != "" {
		t.Errorf("page (-want +got):\n%s", diff)
	}
}

// TestCommittedPageIsCurrent checks that the committed page matches the definitions, and that the output is
// deterministic.
func TestCommittedPageIsCurrent(t *testing.T) {
	t.Parallel()

	committed, err := os.ReadFile(filepath.Join("..", "..", reference))
	if err != nil {
		t.Fatal(err)
	}

	for range 5 {
		crds, err := loadCRDs(filepath.Join("..", "..", definitions))
		if err != nil {
			t.Fatal(err)
		}

		got, err := renderPage(crds)
		if err != nil {
			t.Fatal(err)
		}

		if got != string(committed) {
			t.Fatalf("%s is out of date: run make generate", reference)
		}
	}
}

func TestLoadSaysWhatIsWrong(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()

	if _, err := loadCRDs(dir); err == nil || !strings.Contains(err.Error(), "run make generate") {
		t.Errorf("the error for an empty folder is: %v", err)
	}

	if err := os.WriteFile(filepath.Join(dir, "broken.yaml"), []byte("spec: {grp: a}"), 0o600); err != nil {
		t.Fatal(err)
	}

	if _, err := loadCRDs(dir); err == nil || !strings.Contains(err.Error(), "broken.yaml") {
		t.Errorf("the error for an invalid file is: %v", err)
	}
}
