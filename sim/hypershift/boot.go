// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package hypershift

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
	"text/template"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// templateKey is the label by which DPF finds templates, and the prefix of the annotations that name
// a template's DPUCluster.
const templateKey = "provisioning.dpu.nvidia.com/bfcfg-template"

// System is the operating system that was installed on a DPU.
type System struct {
	// Files holds the contents of the installed files by path. Units holds the systemd units by name,
	// and under "live" the names of the units of the live system.
	Files, Units map[string]string
	// Image is the operating system image (osImageURL of the machine configuration).
	Image string
}

// ignitionConfig is the part of an Ignition configuration that BootDPU needs.
type ignitionConfig struct {
	Ignition struct {
		Version string `json:"version"`
	} `json:"ignition"`
	Storage struct {
		Files []struct {
			Path     string       `json:"path"`
			Contents fileSource   `json:"contents"`
			Append   []fileSource `json:"append"`
		} `json:"files"`
	} `json:"storage"`
	Systemd struct {
		Units []struct {
			Name     string `json:"name"`
			Enabled  *bool  `json:"enabled"`
			Contents string `json:"contents"`
		} `json:"units"`
	} `json:"systemd"`
}

type fileSource struct {
	Source      string `json:"source"`
	Compression string `json:"compression"`
}

// BootDPU simulates DPF and a DPU. It renders the template of the DPUCluster for the DPU, boots the
// live system of that template, and installs the system that the live system carries. Then it creates
// the DPU's Node in the hosted cluster, with the kubeconfig from the installed files.
func (s *Sim) BootDPU(ctx context.Context, cluster types.NamespacedName, name string) (System, error) {
	text, err := s.findTemplate(ctx, cluster)
	if err != nil {
		return System{}, err
	}

	filled, err := renderTemplate(text, map[string]string{
		"DPUHostName": name, "DPUName": name, "DPUNamespace": cluster.Namespace, "DPUUID": "uid-of-" + name,
	})
	if err != nil {
		return System{}, err
	}

	live, err := parseSystem([]byte(filled))
	if err != nil {
		return System{}, fmt.Errorf("boot the live system: %w", err)
	}

	if strings.TrimSpace(live.Files["/etc/hostname"]) != name ||
		!strings.Contains(live.Files["/etc/dpf/environment"], "DPUName="+name+"\n") {
		return System{}, errors.New("boot the live system: its hostname or its environment does not name the DPU")
	}

	installed, err := parseSystem([]byte(live.Files["/var/target.ign"]))
	if err != nil {
		return System{}, fmt.Errorf("boot the installed system: %w", err)
	}

	var machine struct {
		Spec struct {
			OSImageURL string `json:"osImageURL"`
		} `json:"spec"`
	}
	if err := json.Unmarshal([]byte(installed.Files["/etc/ignition-machine-config-encapsulated.json"]), &machine); err != nil {
		return System{}, fmt.Errorf("boot the installed system: machine configuration: %w", err)
	}

	installed.Image = machine.Spec.OSImageURL
	installed.Units["live"] = strings.Join(mapKeys(live.Units), " ")

	return installed, createNode(ctx, installed.Files["/etc/kubernetes/kubeconfig"], name)
}

func mapKeys(units map[string]string) []string {
	var out []string
	for key := range units {
		out = append(out, key)
	}

	return out
}

// findTemplate returns the template of a DPUCluster. As in DPF, the DPUCluster must have exactly one.
func (s *Sim) findTemplate(ctx context.Context, cluster types.NamespacedName) (string, error) {
	var all corev1.ConfigMapList
	if err := s.client.List(ctx, &all, client.MatchingLabels{templateKey: "true"}); err != nil {
		return "", fmt.Errorf("list templates: %w", err)
	}

	var found []string

	for i := range all.Items {
		annotations := all.Items[i].Annotations
		if annotations[templateKey+"-cluster-name"] == cluster.Name &&
			annotations[templateKey+"-cluster-namespace"] == cluster.Namespace {
			found = append(found, all.Items[i].Data["BF_CFG_TEMPLATE"])
		}
	}

	if len(found) != 1 || found[0] == "" {
		return "", fmt.Errorf("boot a DPU of %s: it has %d templates, and must have one that is not empty", cluster, len(found))
	}

	return found[0], nil
}

// renderTemplate executes a template. It fails if the template uses a value that DPF does not provide.
func renderTemplate(text string, values map[string]string) (string, error) {
	parsed, err := template.New("bf.cfg").Option("missingkey=error").Parse(text)
	if err != nil {
		return "", fmt.Errorf("parse template: %w", err)
	}

	var out bytes.Buffer
	if err := parsed.Execute(&out, values); err != nil {
		return "", fmt.Errorf("execute template: %w", err)
	}

	return out.String(), nil
}

// parseSystem returns the system that an Ignition configuration describes. It ignores unknown fields,
// because Ignition only warns about them, and fails where Ignition would abort the boot.
func parseSystem(text []byte) (System, error) {
	var config ignitionConfig
	if err := json.Unmarshal(text, &config); err != nil {
		return System{}, fmt.Errorf("parse ignition: %w", err)
	}

	if !strings.HasPrefix(config.Ignition.Version, "3.") {
		return System{}, fmt.Errorf("parse ignition: version %q is not supported, want 3.x", config.Ignition.Version)
	}

	out := System{Files: map[string]string{}, Units: map[string]string{}}

	for _, file := range config.Storage.Files {
		if _, exists := out.Files[file.Path]; exists {
			return System{}, fmt.Errorf("parse ignition: file %s is duplicated", file.Path)
		}

		for _, part := range append([]fileSource{file.Contents}, file.Append...) {
			content, err := part.decode()
			if err != nil {
				return System{}, fmt.Errorf("parse ignition: file %s: %w", file.Path, err)
			}

			out.Files[file.Path] += content
		}
	}

	for _, unit := range config.Systemd.Units {
		out.Units[unit.Name] = unit.Contents
	}

	return out, nil
}

func (f fileSource) decode() (string, error) {
	if f.Source == "" {
		return "", nil
	}

	kind, data, ok := strings.Cut(f.Source, ",")
	if !ok || !strings.HasPrefix(kind, "data:") {
		return "", errors.New("the source is not a data URL")
	}

	text, err := url.PathUnescape(data)
	if strings.HasSuffix(kind, ";base64") {
		var raw []byte

		raw, err = base64.StdEncoding.DecodeString(data)
		text = string(raw)
	}

	if err != nil || f.Compression != "gzip" {
		return text, err
	}

	zip, err := gzip.NewReader(strings.NewReader(text))
	if err != nil {
		return "", fmt.Errorf("decompress: %w", err)
	}

	raw, err := io.ReadAll(zip)

	return string(raw), err
}

// createNode creates the DPU's Node in the hosted cluster.
func createNode(ctx context.Context, kubeconfig, name string) error {
	config, err := clientcmd.RESTConfigFromKubeConfig([]byte(kubeconfig))
	if err != nil {
		return fmt.Errorf("join cluster: parse kubeconfig: %w", err)
	}

	hosted, err := client.New(config, client.Options{})
	if err == nil {
		err = hosted.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}

	if err != nil {
		return fmt.Errorf("join cluster: %w", err)
	}

	return nil
}
