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

// bfcfg begins the label and the annotations by which DPF finds a template.
const bfcfg = "provisioning.dpu.nvidia.com/bfcfg-template"

// System is what a DPU was installed with.
type System struct {
	// Files of the installed system, by path; Units by name.
	Files, Units map[string]string
	// Image of the system.
	Image string
}

// ignitionConfig is as much of an ignition as a boot needs.
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

// BootDPU plays DPF and a DPU: the template of the DPUCluster is filled for the DPU, its live
// system installs what it carries, and the DPU joins the hosted cluster as a Node of its name
// with the kubeconfig that it finds in its own files.
func (s *Sim) BootDPU(ctx context.Context, cluster types.NamespacedName, name string) (System, error) {
	text, err := s.bootTemplate(ctx, cluster)
	if err != nil {
		return System{}, err
	}

	filled, err := fill(text, map[string]string{
		"DPUHostName": name, "DPUName": name, "DPUNamespace": cluster.Namespace, "DPUUID": "uid-of-" + name,
	})
	if err != nil {
		return System{}, err
	}

	live, err := readSystem([]byte(filled))
	if err != nil {
		return System{}, fmt.Errorf("boot the live system: %w", err)
	}

	if strings.TrimSpace(live.Files["/etc/hostname"]) != name ||
		!strings.Contains(live.Files["/etc/dpf/environment"], "DPUName="+name+"\n") {
		return System{}, errors.New("boot the live system: it does not know which DPU it is")
	}

	installed, err := readSystem([]byte(live.Files["/var/target.ign"]))
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
	installed.Units["live"] = strings.Join(keys(live.Units), " ")

	return installed, join(ctx, installed.Files["/etc/kubernetes/kubeconfig"], name)
}

func keys(of map[string]string) []string {
	var out []string
	for key := range of {
		out = append(out, key)
	}

	return out
}

// bootTemplate finds the one template of a DPUCluster, as DPF does.
func (s *Sim) bootTemplate(ctx context.Context, cluster types.NamespacedName) (string, error) {
	var all corev1.ConfigMapList
	if err := s.client.List(ctx, &all, client.MatchingLabels{bfcfg: "true"}); err != nil {
		return "", fmt.Errorf("list templates: %w", err)
	}

	var found []string

	for i := range all.Items {
		of := all.Items[i].Annotations
		if of[bfcfg+"-cluster-name"] == cluster.Name && of[bfcfg+"-cluster-namespace"] == cluster.Namespace {
			found = append(found, all.Items[i].Data["BF_CFG_TEMPLATE"])
		}
	}

	if len(found) != 1 || found[0] == "" {
		return "", fmt.Errorf("boot a DPU of %s: it has %d templates", cluster, len(found))
	}

	return found[0], nil
}

// fill fills a template; a word that DPF does not have is an error.
func fill(text string, words map[string]string) (string, error) {
	parsed, err := template.New("bf.cfg").Option("missingkey=error").Parse(text)
	if err != nil {
		return "", fmt.Errorf("read template: %w", err)
	}

	var out bytes.Buffer
	if err := parsed.Execute(&out, words); err != nil {
		return "", fmt.Errorf("fill template: %w", err)
	}

	return out.String(), nil
}

// readSystem is what a system is after it has run an ignition. Fields that ignition does not
// know would be warnings there; what can't be read ends a boot.
func readSystem(text []byte) (System, error) {
	var config ignitionConfig
	if err := json.Unmarshal(text, &config); err != nil {
		return System{}, fmt.Errorf("read ignition: %w", err)
	}

	if !strings.HasPrefix(config.Ignition.Version, "3.") {
		return System{}, fmt.Errorf("read ignition: version %q", config.Ignition.Version)
	}

	out := System{Files: map[string]string{}, Units: map[string]string{}}

	for _, file := range config.Storage.Files {
		if _, twice := out.Files[file.Path]; twice {
			return System{}, fmt.Errorf("read ignition: %s is there twice", file.Path)
		}

		for _, part := range append([]fileSource{file.Contents}, file.Append...) {
			content, err := part.read()
			if err != nil {
				return System{}, fmt.Errorf("read ignition: %s: %w", file.Path, err)
			}

			out.Files[file.Path] += content
		}
	}

	for _, unit := range config.Systemd.Units {
		out.Units[unit.Name] = unit.Contents
	}

	return out, nil
}

func (f fileSource) read() (string, error) {
	if f.Source == "" {
		return "", nil
	}

	kind, data, ok := strings.Cut(f.Source, ",")
	if !ok || !strings.HasPrefix(kind, "data:") {
		return "", errors.New("no data URL")
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
		return "", fmt.Errorf("unpack: %w", err)
	}

	raw, err := io.ReadAll(zip)

	return string(raw), err
}

// join makes the Node.
func join(ctx context.Context, kubeconfig, name string) error {
	config, err := clientcmd.RESTConfigFromKubeConfig([]byte(kubeconfig))
	if err != nil {
		return fmt.Errorf("join: kubeconfig: %w", err)
	}

	hosted, err := client.New(config, client.Options{})
	if err == nil {
		err = hosted.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}

	if err != nil {
		return fmt.Errorf("join: %w", err)
	}

	return nil
}
