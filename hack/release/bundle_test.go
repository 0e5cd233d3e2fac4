// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// buildBundle builds the bundle and returns its files.
func buildBundle(t *testing.T, r *release) map[string][]byte {
	t.Helper()

	if err := r.writeBundle(); err != nil {
		t.Fatal(err)
	}

	return unpackArchive(t, r, "hyperfleet-bundle-1.2.3.tgz")
}

func parseObject(t *testing.T, data []byte) object {
	t.Helper()

	var o object
	if err := yaml.Unmarshal(data, &o); err != nil {
		t.Fatal(err)
	}

	return o
}

const csvFile = "bundle/manifests/hyperfleet.clusterserviceversion.yaml"

// listBundleKinds returns the kinds that a bundle in the format registry+v1 can contain in addition to its
// ClusterServiceVersion (documentation of the Operator Lifecycle Manager, "Packaging an operator").
func listBundleKinds() []string {
	return []string{
		"CustomResourceDefinition", "Secret", "ClusterRole", "ClusterRoleBinding", "ConfigMap", "ServiceAccount", "Service", "Role",
		"RoleBinding", "PodDisruptionBudget", "PriorityClass", "VerticalPodAutoscaler", "PrometheusRule", "ServiceMonitor",
	}
}

// TestBundleFormat checks that the bundle follows its format. It has one ClusterServiceVersion, its owned kinds,
// only kinds that OLM accepts, and labels with the paths of its files.
func TestBundleFormat(t *testing.T) {
	r := newFakeRelease(t)
	files := buildBundle(t, r)
	csv := parseObject(t, files[csvFile])

	if csv.kind() != "ClusterServiceVersion" || csv["apiVersion"] != "operators.coreos.com/v1alpha1" || csv.name() != "hyperfleet.v1.2.3" ||
		csv.field("spec", "version") != "1.2.3" {
		t.Errorf("the ClusterServiceVersion is %v %v %s %v", csv["apiVersion"], csv.kind(), csv.name(), csv.field("spec", "version"))
	}

	crds := map[string]object{}

	for name, data := range files {
		if path.Dir(name) != "bundle/manifests" || name == csvFile {
			continue
		}

		o := parseObject(t, data)
		if !slices.Contains(listBundleKinds(), o.kind()) || o.field("metadata", "namespace") != nil {
			t.Errorf("%s: OLM does not accept %s %s in namespace %v", name, o.kind(), o.name(), o.field("metadata", "namespace"))
		}

		if o.kind() == "CustomResourceDefinition" {
			crds[o.name()] = o
		}
	}

	owned, _ := csv.field("spec", "customresourcedefinitions", "owned").([]any)
	if len(owned) != len(crds) || len(crds) < 10 {
		t.Errorf("%d kinds are owned, of %d", len(owned), len(crds))
	}

	for _, item := range owned {
		about, _ := item.(map[string]any)

		crd := crds[fmt.Sprint(about["name"])]
		if crd == nil || crd.field("spec", "names", "kind") != about["kind"] || about["version"] != "v1alpha1" || about["description"] == nil {
			t.Errorf("owned: %v", about)
		}
	}

	var samples []object

	examples, _ := csv.field("metadata", "annotations", "alm-examples").(string)
	if err := json.Unmarshal([]byte(examples), &samples); err != nil || len(samples) != len(crds) {
		t.Errorf("%d samples of %d kinds (%v)", len(samples), len(crds), err)
	}

	var modes []string

	all, _ := csv.field("spec", "installModes").([]any)
	for _, item := range all {
		mode, _ := item.(map[string]any)
		modes = append(modes, fmt.Sprint(mode["type"], "=", mode["supported"]))
	}

	if got := strings.Join(modes, " "); got != "OwnNamespace=false SingleNamespace=false MultiNamespace=false AllNamespaces=true" {
		t.Errorf("install modes: %s", got)
	}

	if csv.field("spec", "webhookdefinitions") != nil {
		t.Error("there are webhooks")
	}
}

// TestBundleIsValid checks the bundle with the validator of the Operator Framework.
func TestBundleIsValid(t *testing.T) {
	verify, err := filepath.Abs("../../bin/operator-verify")
	if err != nil {
		t.Fatal(err)
	}

	if _, err := os.Stat(verify); err != nil {
		t.Fatalf("find operator-verify: %v (hack/setup.sh olm builds it)", err)
	}

	dir := t.TempDir()

	for name, data := range buildBundle(t, newFakeRelease(t)) {
		file := filepath.Join(dir, filepath.FromSlash(name))
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, data, 0o600)); err != nil {
			t.Fatal(err)
		}
	}

	look := func() ([]byte, error) {
		return exec.CommandContext(t.Context(), verify, "manifests", filepath.Join(dir, "bundle")).CombinedOutput()
	}

	if annotations, err := look(); err != nil || len(annotations) > 0 {
		t.Errorf("%v\n%s", err, annotations)
	}

	// operator-verify exits with 0 even if it finds problems. Check that it finds a missing owned kind.
	if err := os.Remove(filepath.Join(dir, "bundle", "manifests", "runnerpools.hyperfleet.io_customresourcedefinition.yaml")); err != nil {
		t.Fatal(err)
	}

	if annotations, err := look(); err != nil || !bytes.Contains(annotations, []byte("Kind=RunnerPool")) {
		t.Errorf("without a kind that it owns: %v\n%s", err, annotations)
	}
}

// TestBundleImage checks that the labels of the bundle image match metadata/annotations.yaml, and that the image is
// reproducible.
func TestBundleImage(t *testing.T) {
	r, again := newFakeRelease(t), newFakeRelease(t)
	files := buildBundle(t, r)
	buildBundle(t, again)

	const archive = "hyperfleet-bundle-v1.2.3.oci.tar"

	image := readFile(t, r.file(archive))
	if !bytes.Equal(image, readFile(t, again.file(archive))) {
		t.Error("the same release has another bundle")
	}

	annotations, _ := parseObject(t, files["bundle/metadata/annotations.yaml"])["annotations"].(map[string]any)
	if len(annotations) != 6 {
		t.Errorf("annotations: %v", annotations)
	}

	blobs := readTar(t, bytes.NewReader(image))

	var config struct {
		Config struct{ Labels map[string]string }
	}

	for name, blob := range blobs {
		if strings.HasPrefix(name, "blobs/") && bytes.Contains(blob, []byte(`"Labels"`)) {
			decode(t, blob, &config)
		}
	}

	for name, value := range annotations {
		if config.Config.Labels[name] != value {
			t.Errorf("label %s is %q, want %v", name, config.Config.Labels[name], value)
		}
	}
}

// TestBundleHasPermissionsOfManifests checks that OLM grants each ServiceAccount the same permissions as the
// manifests, and that the bundle omits no object of the manifests.
func TestBundleHasPermissionsOfManifests(t *testing.T) {
	r := newFakeRelease(t)
	files := buildBundle(t, r)
	csv := parseObject(t, files[csvFile])

	if err := r.writeManifests(); err != nil {
		t.Fatal(err)
	}

	objects, err := decodeObjects(string(readFile(t, r.file("hyperfleet.yaml"))))
	if err != nil {
		t.Fatal(err)
	}

	granted := map[string]any{}

	for place, key := range map[string]string{"permissions": "Role", "clusterPermissions": "ClusterRole"} {
		list, _ := csv.field("spec", "install", "spec", place).([]any)
		for _, item := range list {
			one, _ := item.(map[string]any)
			granted[fmt.Sprint(key, " ", one["serviceAccountName"])] = one["rules"]
		}
	}

	rules, bound, deployed := map[string]any{}, map[string]any{}, map[string]object{}

	for _, o := range objects {
		switch o.kind() {
		case "Role", "ClusterRole":
			rules[o.kind()+" "+o.name()] = o["rules"]
		case "RoleBinding", "ClusterRoleBinding":
			subjects, _ := o["subjects"].([]any)
			for _, item := range subjects {
				subject, _ := item.(map[string]any)
				bound[fmt.Sprint(o.field("roleRef", "kind"), " ", subject["name"])] = rules[fmt.Sprint(o.field("roleRef", "kind"), " ", o.field("roleRef", "name"))]
			}
		case "Deployment":
			deployed[o.name()] = o
		}
	}

	if len(bound) < 6 || !reflect.DeepEqual(bound, granted) {
		t.Errorf("the manifests bind %d roles, and the bundle %d or other roles", len(bound), len(granted))
	}

	list, _ := csv.field("spec", "install", "spec", "deployments").([]any)
	for _, item := range list {
		one, _ := item.(map[string]any)

		want := deployed[fmt.Sprint(one["name"])]
		if want == nil || !strings.Contains(fmt.Sprint(one["spec"]), "registry.example.com/fleet/hyperfleet:v1.2.3") ||
			!reflect.DeepEqual(object(one).field("spec", "selector"), want.field("spec", "selector")) {
			t.Errorf("Deployment %v is not that of the manifests", one["name"])
		}

		delete(deployed, fmt.Sprint(one["name"]))
	}

	if len(deployed) > 0 {
		t.Errorf("the bundle lacks Deployments %v", deployed)
	}

	others := slices.Collect(maps.Values(files))
	elsewhere := string(bytes.Join(append(others, readFile(t, r.file(extraManifestsName))), []byte("\n---\n")))

	for _, o := range objects {
		covered := []string{"Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding", "ServiceAccount", "Deployment"}
		if !slices.Contains(covered, o.kind()) && !strings.Contains(elsewhere, "\n  name: "+o.name()+"\n") {
			t.Errorf("%s %s is missing from the bundle", o.kind(), o.name())
		}
	}
}
