"""The words of which companies are made."""

from __future__ import annotations


def _words(text: str, between: str) -> tuple[str, ...]:
    return tuple(text.split(between))


FIRST = _words(
    "Ada Alba Amir Anja Arun Bela Bruno Carla Chidi Clara Dalia Dario Elif Emil Enzo Esra Farid Fiona "
    "Greta Hana Hugo Ines Ivan Jana Jonas Kaito Karin Lara Leon Lina Luca Maya Mila Nadia Nils Nora Olga "
    "Omar Paolo Petra Quinn Rafa Rosa Samir Sara Selma Stefan Tara Theo Tomas Uma Vera Viktor Wanda Yara "
    "Yusuf Zara Zeno",
    " ",
)
LAST = _words(
    "Abara Alves Becker Bianchi Castro Chen Dahl Diaz Eklund Farah Fischer Garcia Gruber Haas Hansen Ito "
    "Jansen Joshi Kaya Keller Kim Kovac Larsen Lopez Mancini Mehta Meyer Moreau Nakata Novak Okafor Olsen "
    "Park Patel Petrov Quist Ramos Rossi Santos Sato Schmid Silva Singh Sorel Tanaka Toth Urban Vargas "
    "Vogel Weber Wolf Yilmaz Young Zhang",
    " ",
)
DEPARTMENTS = ("Sales", "Support", "Finance", "Operations", "Engineering", "HR", "Marketing", "Legal")
TITLES = {
    "Sales": "account executive",
    "Support": "support agent",
    "Finance": "accountant",
    "Operations": "operations planner",
    "Engineering": "engineer",
    "HR": "HR partner",
    "Marketing": "marketing specialist",
    "Legal": "counsel",
}
CITIES = {"Lisbon": 0, "Berlin": 1, "Athens": 2, "Boston": -5}
"""The offices, with their hours from UTC."""
ROOMS = ("Alder", "Birch", "Cedar", "Hazel", "Maple", "Rowan", "Willow", "Aspen")
ACCOUNT_FIRST = _words(
    "Arctic Amber Blue Bright Cobalt Copper Coral Delta Ember Falcon Garnet Golden Harbor Iron Juniper "
    "Lunar Meridian Nova Onyx Opal Pacific Quartz Red Sable Silver Solar Summit Teal Umber Vector Velvet "
    "Western Zenith",
    " ",
)
ACCOUNT_LAST = _words(
    "Bakery Clinics Dairy Energy Foods Freight Glass Hotels Labs Logistics Media Motors Optics Paper",
    " ",
)
INDUSTRIES = ("retail", "health", "transport", "energy", "media")
TOWNS = ("Porto", "Graz", "Lyon", "Turin", "Ghent", "Malmo", "Krakow", "Bilbao", "Leeds", "Basel")
STREETS = ("Mill Lane", "Station Road", "Harbour Street", "Park Avenue", "Church Row", "Bridge Street", "Oak Drive")
PRODUCTS = _words(
    "desk lamp, office chair, standing desk, monitor arm, headset, label printer, scanner, docking "
    "station, whiteboard, projector, filing cabinet, shredder, webcam, keyboard, barcode reader, power "
    "strip, network switch, tablet, conference phone, laptop stand",
    ", ",
)
SUPPLIERS = ("Norvik Supply", "Tessera Trade", "Halden Works", "Brio Parts")
PROBLEMS = (
    "arrived damaged",
    "does not start",
    "came in the wrong colour",
    "is missing a cable",
    "makes a loud noise",
    "was delivered to the wrong address",
    "shows an error after the update",
)
PROJECTS = (
    "Atlas",
    "Beacon",
    "Comet",
    "Drift",
    "Echo",
    "Fjord",
    "Glacier",
    "Horizon",
    "Indigo",
    "Jade",
    "Kestrel",
    "Lotus",
)
STEPS = (
    "write the brief",
    "review the contract",
    "test the import",
    "train the users",
    "draw the floor plan",
    "clean the data",
    "order the parts",
    "set up the server",
    "check the figures",
    "prepare the demo",
    "translate the manual",
    "plan the launch",
)
CHANNELS = ("general", "sales", "support", "operations", "social", "projects")
TOPICS = (
    "budget",
    "catering",
    "contract",
    "delivery plan",
    "fire drill",
    "floor plan",
    "forecast",
    "inventory",
    "invoice",
    "newsletter",
    "onboarding",
    "packaging",
    "price list",
    "roadmap",
    "security audit",
    "survey",
    "training",
    "travel plan",
    "warranty",
    "workshop",
)
PHRASES = (
    "Thank you for the quick reply.",
    "Please have a look when you find the time.",
    "We spoke about it last week.",
    "Nothing urgent, but good to know.",
    "Let me know if anything is unclear.",
    "I have copied nobody else for now.",
)
KINDS = ("vacation", "parental", "training")
CATEGORIES = ("hotel", "meal", "travel", "software", "office")
CODE = "ABCDEFGHJKLMNPQRSTUVWXYZ"
"""The letters of generated codes."""
