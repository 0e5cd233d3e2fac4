// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package cloudinit

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/inputbound"
)

// userOverrides says which of the operator's parts a template brings itself, as document
// 000's sample does.
type userOverrides struct {
	config, unit, service, start bool
}

// takeOver looks for the operator's paths in the user's write_files. A template may
// write them only if it writes guest.ConfigPath as a valid guest.Config for this very
// runner; what that leaves out is filled in from the operator's own.
func takeOver(in *Input, root *yaml.Node) (userOverrides, error) {
	var taken userOverrides

	entries := lookup(root, "write_files")
	if entries == nil || entries.Kind != yaml.SequenceNode {
		return taken, nil
	}

	found := map[string]*yaml.Node{}

	for i, e := range entries.Content {
		entry := resolve(e)

		p := lookup(entry, "path")
		if p == nil {
			continue
		}

		clean := path.Clean("/" + strings.TrimSpace(p.Value))
		where := fmt.Sprintf("%s.write_files[%d].path line %d", fieldUserData, i, p.Line)

		if clean == "/run/hyperfleet" || strings.HasPrefix(clean, "/run/hyperfleet/") {
			return taken, fmt.Errorf("%s: %s belongs to the bootstrap service: write to another path", where, clean)
		}

		if clean != guest.ConfigPath && clean != UnitPath && clean != guest.ServicePath || in.Config == nil {
			continue
		}

		if found[clean] != nil {
			return taken, fmt.Errorf("%s: %s is written twice: remove one", where, clean)
		}

		found[clean] = entry
	}

	if entry := found[guest.ConfigPath]; entry != nil {
		if err := completeConfig(in, entry); err != nil {
			return taken, fmt.Errorf("%s.write_files line %d: %s: %w: leave the file out and the operator writes it",
				fieldUserData, entry.Line, guest.ConfigPath, err)
		}

		taken.config = true
	}

	taken.unit, taken.service = found[UnitPath] != nil, found[guest.ServicePath] != nil
	taken.start = taken.config && startsService(root)

	return taken, clashes(in, taken, found)
}

// clashes refuses a unit file or program beside the one that delivery brings.
func clashes(in *Input, taken userOverrides, found map[string]*yaml.Node) error {
	brings := in.Delivery.Method == v1alpha1.DeliveryDownload || in.Delivery.Method == v1alpha1.DeliveryISO
	if taken.config || !brings {
		return nil
	}

	for _, p := range []string{UnitPath, guest.ServicePath} {
		if entry := found[p]; entry != nil {
			return fmt.Errorf("%s.write_files line %d: %s is written by bootstrap.delivery %s too: "+
				"remove the entry, or set bootstrap.delivery to image", fieldUserData, entry.Line, p, in.Delivery.Method)
		}
	}

	return nil
}

// completeConfig checks the template's runner configuration, fills in what it leaves
// out, and puts it back for root's eyes alone.
func completeConfig(in *Input, entry *yaml.Node) error {
	text, err := entryContent(entry)
	if err != nil {
		return err
	}

	merged, err := overlay(in.Config, text)
	if err != nil {
		return err
	}

	for i := 0; i+1 < len(entry.Content); i += 2 {
		entry.Content[i+1] = resolve(entry.Content[i+1])
	}

	set(entry, "content", &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Style: yaml.LiteralStyle, Value: merged})
	set(entry, "encoding", &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: "text/plain"})
	set(entry, "permissions", &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Style: yaml.SingleQuotedStyle, Value: secretMode})

	return nil
}

// entryContent reads the content of a write_files entry.
func entryContent(entry *yaml.Node) (string, error) {
	if a := lookup(entry, "append"); a != nil && a.Value != "false" {
		return "", errors.New("append cannot be used for it")
	}

	content := lookup(entry, "content")
	if content == nil || content.Kind != yaml.ScalarNode {
		return "", errors.New("has no content")
	}

	encoding := ""
	if e := lookup(entry, "encoding"); e != nil {
		encoding = strings.ToLower(e.Value)
	}

	switch {
	case content.Tag == "!!binary", encoding == "b64", encoding == "base64":
		raw, err := base64.StdEncoding.DecodeString(strings.Join(strings.Fields(content.Value), ""))
		if err != nil {
			return "", errors.New("content is not base64")
		}

		return string(raw), nil
	case encoding == "", encoding == "text/plain":
		return content.Value, nil
	default:
		return "", fmt.Errorf("encoding %s cannot be used for it", encoding)
	}
}

// overlay reads the template's configuration strictly and puts what it states over the
// operator's; empty values state nothing.
func overlay(ours *guest.Config, text string) (string, error) {
	if err := inputbound.JSON([]byte(text), maxOtherValues); err != nil {
		return "", fmt.Errorf("is no runner configuration: %w", err)
	}

	dec := json.NewDecoder(strings.NewReader(withoutEmpty(text)))
	dec.DisallowUnknownFields()

	var user guest.Config
	if err := dec.Decode(&user); err != nil {
		return "", fmt.Errorf("is not a runner configuration: %w", err)
	}

	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return "", errors.New("is not a runner configuration: text follows its end")
	}

	if user.RunnerName != ours.RunnerName {
		return "", fmt.Errorf("runner_name is %q and not this machine's %q, write {{ .RunnerName }}", user.RunnerName, ours.RunnerName)
	}

	return layer(ours, &user)
}

// withoutEmpty drops empty strings, lists and objects from a JSON object, which is how a
// template writes a variable that has no value. Invalid JSON comes back as it is.
func withoutEmpty(text string) string {
	dec := json.NewDecoder(strings.NewReader(text))

	var v map[string]any
	if err := dec.Decode(&v); err != nil || dec.More() {
		return text
	}

	prune(v)

	out, err := json.Marshal(v)
	if err != nil {
		return text
	}

	return string(out)
}

func prune(v map[string]any) {
	for key, value := range v {
		switch value := value.(type) {
		case string:
			if value == "" {
				delete(v, key)
			}
		case nil:
			delete(v, key)
		case []any:
			if len(value) == 0 {
				delete(v, key)
			}
		case map[string]any:
			prune(value)

			if len(value) == 0 {
				delete(v, key)
			}
		}
	}
}

// layer writes base with over's values on top, as JSON.
func layer(base, over *guest.Config) (string, error) {
	var values [2]map[string]any

	for i, c := range []*guest.Config{base, over} {
		raw, err := json.Marshal(c)
		if err != nil {
			return "", fmt.Errorf("write runner configuration: %w", err)
		}

		if err := json.Unmarshal(raw, &values[i]); err != nil {
			return "", fmt.Errorf("read runner configuration: %w", err)
		}
	}

	prune(values[1])
	stack(values[0], values[1])

	raw, err := json.Marshal(values[0])
	if err != nil {
		return "", fmt.Errorf("write runner configuration: %w", err)
	}

	var c guest.Config // back into the order of its fields
	if err := json.Unmarshal(raw, &c); err != nil {
		return "", fmt.Errorf("read runner configuration: %w", err)
	}

	out, err := json.MarshalIndent(&c, "", "  ")
	if err != nil {
		return "", fmt.Errorf("write runner configuration: %w", err)
	}

	return string(out) + "\n", nil
}

func stack(base, over map[string]any) {
	for key, value := range over {
		under, ok1 := base[key].(map[string]any)
		top, ok2 := value.(map[string]any)

		if ok1 && ok2 {
			stack(under, top)

			continue
		}

		base[key] = value
	}
}

// startsService tells whether the user's runcmd starts the bootstrap service.
func startsService(root *yaml.Node) bool {
	commands := lookup(root, "runcmd")
	if commands == nil || commands.Kind != yaml.SequenceNode {
		return false
	}

	for _, c := range commands.Content {
		words := strings.Fields(commandText(resolve(c)))
		text := strings.Join(words, " ")
		unit := strings.Contains(text, strings.TrimSuffix(guest.ServiceUnit, ".service"))
		starts := strings.Contains(text, "systemctl") && (strings.Contains(text, "start ") || strings.Contains(text, "--now"))

		if unit && starts || len(words) > 0 && words[0] == guest.ServicePath {
			return true
		}
	}

	return false
}

// commandText joins the words of a command given as a list.
func commandText(n *yaml.Node) string {
	if n.Kind != yaml.SequenceNode {
		return n.Value
	}

	words := make([]string, len(n.Content))
	for i, c := range n.Content {
		words[i] = resolve(c).Value
	}

	return strings.Join(words, " ")
}
