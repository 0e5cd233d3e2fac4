// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

// Sizes on Grafana's grid of 24 columns.
const (
	gridWidth  = 24
	lineWidth  = 12
	lineHeight = 8
	statWidth  = 6
	statHeight = 4
	// schemaVersion is the dashboard schema of Grafana 10. Later versions migrate it.
	schemaVersion = 39
)

// object is a JSON object.
type object map[string]any

// grafana returns the dashboard in the import format of Grafana. The user selects the data source in
// Grafana.
func (d dashboard) grafana() object {
	source := object{"type": "prometheus", "uid": "${datasource}"}
	list := []object{{"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}}

	for _, variable := range d.variables {
		list = append(list, object{
			"name": variable.name, "type": "query", "datasource": source, "definition": variable.query,
			"query": object{"query": variable.query, "refId": variable.name}, "refresh": 2, "sort": 1,
		})
	}

	return object{
		"uid": d.uid, "title": d.title, "tags": []string{"hyperfleet"}, "editable": true, "schemaVersion": schemaVersion,
		"time": object{"from": "now-6h", "to": "now"}, "refresh": "30s", "timezone": "browser",
		"templating": object{"list": list}, "panels": d.layoutPanels(source),
		"annotations": object{"list": []object{}},
		"links": []object{{
			"type": "dashboards", "title": "HyperFleet", "tags": []string{"hyperfleet"}, "asDropdown": true,
			"icon": "external link", "tooltip": "", "targetBlank": false, "includeVars": false, "keepTime": true,
		}},
	}
}

// layoutPanels returns the panels in rows, from left to right.
func (d dashboard) layoutPanels(source object) []object {
	out := make([]object, 0, len(d.panels))
	x, y, rowHeight := 0, 0, 0

	for i, panel := range d.panels {
		width, height := lineWidth, lineHeight
		if panel.kind == stat {
			width, height = statWidth, statHeight
		}

		if x+width > gridWidth || rowHeight != 0 && rowHeight != height {
			x, y = 0, y+rowHeight
		}

		rowHeight = height
		out = append(out, panel.grafana(i+1, source, object{"x": x, "y": y, "w": width, "h": height}))
		x += width
	}

	return out
}

func (p panel) grafana(id int, source, gridPos object) object {
	targets := make([]object, 0, len(p.queries))

	for i, query := range p.queries {
		targets = append(targets, object{
			"refId": string(rune('A' + i)), "datasource": source, "expr": query.expr, "legendFormat": query.legend,
		})
	}

	custom := object{}
	options := object{
		"reduceOptions": object{"calcs": []string{"lastNotNull"}}, "orientation": "auto", "textMode": "auto", "wideLayout": true,
		"colorMode": "value", "graphMode": "area", "justifyMode": "auto", "showPercentChange": false,
		"percentChangeColorMode": "standard",
	}

	if p.kind == timeseries {
		custom = object{"lineWidth": 1, "fillOpacity": 10, "showPoints": "never"}
		options = object{
			"legend":  object{"displayMode": "list", "placement": "bottom", "showLegend": true, "calcs": []string{}},
			"tooltip": object{"mode": "multi", "sort": "desc"},
		}

		if p.isStacked {
			custom["stacking"], custom["fillOpacity"] = object{"mode": "normal"}, 40
		}
	}

	return object{
		"id": id, "title": p.title, "type": p.kind, "datasource": source, "gridPos": gridPos, "targets": targets, "options": options,
		"fieldConfig": object{"defaults": object{"unit": p.unit, "min": 0, "custom": custom}, "overrides": []any{}},
	}
}
